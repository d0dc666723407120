package staticpod

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// checkText refuses content that is not text. Decoders would replace invalid characters, and a pod with another name or
// command would run.
func checkText(data []byte) error {
	at, problem := bytes.IndexByte(data, 0), "a zero byte"
	if !utf8.Valid(data) {
		if invalid := firstInvalid(data); at < 0 || invalid < at {
			at, problem = invalid, "not UTF-8"
		}
	}
	if at < 0 {
		return nil
	}
	return fmt.Errorf("line %d: %s: a manifest is text in UTF-8", 1+bytes.Count(data[:at], []byte{'\n'}), problem)
}

// firstInvalid returns the index of the first byte that is not UTF-8.
func firstInvalid(data []byte) int {
	at := 0
	for at < len(data) {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size <= 1 {
			break
		}
		at += size
	}
	return at
}
