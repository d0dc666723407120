package cri

import "strings"

// idLength is the number of hexadecimal digits in the IDs of sandboxes and containers, in containerd and CRI-O.
const idLength = 64

// WithoutIDs replaces every ID of a sandbox or container in a text by word. Errors of the runtime often contain an ID
// that differs in each attempt; without it, equal errors are recognizable.
func WithoutIDs(text, word string) string {
	var out strings.Builder
	for text != "" {
		digits := 0
		for digits < len(text) && isHex(text[digits]) {
			digits++
		}
		rest := max(digits, 1)
		if digits == idLength {
			out.WriteString(word)
		} else {
			out.WriteString(text[:rest])
		}
		text = text[rest:]
	}
	return out.String()
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }
