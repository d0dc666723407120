// Package drivererror makes the errors of drivers and plugins fit for logs, events, the status of pods and terminals:
// their texts are bounded, and contain nothing that controls a terminal.
package drivererror

import (
	"strings"
	"unicode"

	"google.golang.org/grpc/status"
)

// maxText bounds the text of an error, in bytes. It is the API server's limit for the message of an event.
const maxText = 1024

// Of returns an error with the code of the error of a call, and a text fit for users. Another error is returned as it
// is. Remove secrets before, because a part of one would not be found afterwards.
func Of(err error) error {
	answer, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	return status.Error(answer.Code(), readable(answer.Message()))
}

// readable returns the beginning of a text without control characters except line breaks and tabs.
func readable(text string) string {
	const more = "…"
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText-len(more)], "") + more
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
