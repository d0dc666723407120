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

// Bounded returns the beginning of a driver's text, without control characters except line breaks and tabs, in at most
// a number of bytes.
func Bounded(text string, bytes int) string { return cut(printable(cut(text, bytes)), bytes) }

// readable returns the beginning of a text without control characters except line breaks and tabs.
func readable(text string) string { return printable(cut(text, maxText)) }

// cut returns the beginning of a text in at most a number of bytes.
func cut(text string, bytes int) string {
	const more = "…"
	if len(text) > bytes {
		text = strings.ToValidUTF8(text[:bytes-len(more)], "") + more
	}
	return text
}

// printable replaces control characters except line breaks and tabs.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
