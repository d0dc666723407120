package supportcmd

import (
	"bytes"
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"sync"
)

const (
	// removed replaces each secret.
	removed = "[removed]"
	// shortest is the length from which a known value is removed wherever it is. A shorter one, such as "true", would
	// make the text unreadable.
	shortest = 6
)

// pattern is a form of secrets, with what is left of a match. A match that has the form of unless, too, stays.
type pattern struct {
	form   *regexp.Regexp
	left   string
	unless *regexp.Regexp
}

// word is a part of a path, a name or an ID. It is short, or of small letters, or of words that begin with capitals,
// each with digits at its end only, or an ID of 32, 40 or 64 hexadecimal digits.
const word = `(?:[0-9a-z]{1,13}|[a-z]{2,32}[0-9]{0,3}|[a-z]*(?:[A-Z]{1,4}[a-z]{2,}){1,8}[0-9]{0,3}|` +
	`[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})`

// patterns returns the forms of secrets whose values nobody has told. They are made when they are needed: this program
// is all five processes of a node, and none of them needs them.
var patterns = sync.OnceValue(func() []pattern {
	// named is the form of what has no dots and no colons in paths, names and IDs: words between separators. A long random
	// value has no such order, unless it is one of exactly as many hexadecimal digits as the ID of a container or the
	// digest of an image: it cannot be told from these.
	named := regexp.MustCompile(`^[/_-]*(?:` + word + `(?:[/_-]+|$))+$`)
	return []pattern{
		{form: regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(-----END [A-Z0-9 ]+-----|\z)`), left: removed},
		// The rest of a key whose beginning was cut off, or a value in base64.
		{form: regexp.MustCompile(`[A-Za-z0-9+/_-]{60,}={0,2}`), left: removed, unless: named},
		{form: regexp.MustCompile(`eyJ[A-Za-z0-9_-]{5,}(\.[A-Za-z0-9_-]*)+`), left: removed},
		{form: regexp.MustCompile(`(?i)\b(bearer|basic|digest|negotiate)(\s+)[^\s"',;]+`), left: "$1$2" + removed},
		{form: regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@"']+@`), left: "$1" + removed + "@"},
		{
			form: regexp.MustCompile(`(?i)((?:passw(?:or)?d|passphrase|token|secret|api[-_]?key|access[-_]?key|private[-_]?key|` +
				`client-key-data|client-certificate-data|authorization|credential|cookie)s?\\?["']?\s*[:=]\s*)` +
				`(\\?"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s"',;&})\]]+)`),
			left: "$1" + removed,
		},
	}
})

// replace returns the text without the pattern.
func (p pattern) replace(text []byte) []byte {
	if p.unless == nil {
		return p.form.ReplaceAll(text, []byte(p.left))
	}
	return p.form.ReplaceAllFunc(text, func(match []byte) []byte {
		if p.unless.Match(match) {
			return match
		}
		return []byte(p.left)
	})
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
	for _, p := range patterns() {
		text = p.replace(text)
	}
	return text
}
