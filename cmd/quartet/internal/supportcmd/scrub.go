package supportcmd

import (
	"bytes"
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
)

const (
	// removed replaces each secret.
	removed = "[removed]"
	// shortest is the length from which a known value is removed wherever it is. A shorter one, such as "true", would
	// make the text unreadable.
	shortest = 6
)

// pattern is a form of secrets, with what is left of a match.
type pattern struct {
	form *regexp.Regexp
	left string
}

// patterns are the forms of secrets whose values nobody has told.
var patterns = []pattern{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(-----END [A-Z0-9 ]+-----|\z)`), removed},
	// The rest of a key whose beginning was cut off, or a value in base64.
	{regexp.MustCompile(`[A-Za-z0-9+/_-]{60,}={0,2}`), removed},
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{5,}(\.[A-Za-z0-9_-]*)+`), removed},
	{regexp.MustCompile(`(?i)\b(bearer|basic|digest|negotiate)(\s+)[^\s"',;]+`), "$1$2" + removed},
	{regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@"']+@`), "$1" + removed + "@"},
	{
		regexp.MustCompile(`(?i)((?:passw(?:or)?d|passphrase|token|secret|api[-_]?key|access[-_]?key|private[-_]?key|` +
			`client-key-data|client-certificate-data|authorization|credential|cookie)s?\\?["']?\s*[:=]\s*)` +
			`(\\?"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s"',;&})\]]+)`),
		"$1" + removed,
	},
}

// scrubber removes secrets from texts.
type scrubber struct {
	// known are the values that are secret, and their forms in base64, the longest first.
	known [][]byte
}

// newScrubber returns a scrubber of known values.
func newScrubber(values []string) *scrubber {
	var s scrubber
	for _, value := range values {
		for _, form := range []string{value, strings.TrimSpace(value), base64.StdEncoding.EncodeToString([]byte(value))} {
			if len(form) >= shortest {
				s.known = append(s.known, []byte(form))
			}
		}
		// A value of several lines is a line each in a log.
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= shortest {
				s.known = append(s.known, []byte(line))
			}
		}
	}
	slices.SortFunc(s.known, func(a, b []byte) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return bytes.Compare(a, b)
	})
	s.known = slices.CompactFunc(s.known, bytes.Equal)
	return &s
}

// scrub returns a text without secrets.
func (s *scrubber) scrub(text []byte) []byte {
	for _, value := range s.known {
		text = bytes.ReplaceAll(text, value, []byte(removed))
	}
	for _, p := range patterns {
		text = p.form.ReplaceAll(text, []byte(p.left))
	}
	return text
}
