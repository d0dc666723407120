// Package redact removes values from decoder errors about a manifest. The manifest may be that of a secret, and an
// unquoted value is often the cause of the error. configmux reports such errors, and the command line prints them.
package redact

import (
	"regexp"
	"strings"
	"sync"
)

// Parts of a document, other than keys, that YAML parsers quote.
var (
	anchor = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`unknown anchor '[^\n]*' referenced`) })
	key    = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?s)(invalid map key|unsupported map key of type).*`)
	})
	value = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("`[^\n]*`") })
)

// YAML returns the text of a YAML parser's error without values of the document. Line numbers and duplicate keys stay.
func YAML(text string) string {
	text = anchor().ReplaceAllString(text, "unknown anchor: put a text that begins with * in quotes")
	text = key().ReplaceAllString(text, "a key is no text: put a text that begins with { or [ in quotes")
	return value().ReplaceAllString(text, "a value")
}

// JSONType returns the type name in the field Value of a json.UnmarshalTypeError, which may be followed by the value:
// "number" of "number 5".
func JSONType(value string) string {
	word, _, _ := strings.Cut(value, " ")
	return word
}
