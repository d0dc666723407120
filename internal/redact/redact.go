// Package redact takes values out of what decoders say of a manifest: it may be that of a secret, and a value that was
// written without quotes is often the cause of the error. configmux reports such errors, and the command line prints them.
package redact

import (
	"regexp"
	"strings"
)

// These are what the parsers of YAML quote of a document, beside keys.
var (
	anchor = regexp.MustCompile(`unknown anchor '[^\n]*' referenced`)
	key    = regexp.MustCompile(`(?s)(invalid map key|unsupported map key of type).*`)
	value  = regexp.MustCompile("`[^\n]*`")
)

// YAML returns the text of an error of a YAML parser without values of the document. What it says of lines and of keys that
// repeat stays.
func YAML(text string) string {
	text = anchor.ReplaceAllString(text, "unknown anchor: put a text that begins with * in quotes")
	text = key.ReplaceAllString(text, "a key is no text: put a text that begins with { or [ in quotes")
	return value.ReplaceAllString(text, "a value")
}

// JSONType returns what the field Value of a json.UnmarshalTypeError says of the type of a value, which may have the value
// behind it: "number" of "number 5".
func JSONType(value string) string {
	word, _, _ := strings.Cut(value, " ")
	return word
}
