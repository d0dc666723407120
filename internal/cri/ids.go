package cri

import "strings"

// idLength is how many hexadecimal digits the IDs of sandboxes and containers have, in containerd and CRI-O.
const idLength = 64

// WithoutIDs puts a word in the place of every ID of a sandbox or a container in a text. An error of the runtime often names what it
// was about to make, by an ID that is another one at the next try: without it one can tell that it is the same error.
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
