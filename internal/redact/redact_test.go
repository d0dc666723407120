package redact_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/quartet-node/quartet/internal/redact"
)

// TestNoValueOfADocumentIsInAnErrorOfItsParser checks errors for all kinds of faults: they contain no value, but the
// place of the fault.
func TestNoValueOfADocumentIsInAnErrorOfItsParser(t *testing.T) {
	const secret = "hunter2"
	for _, document := range []string{
		"a: *" + secret, "a: {{" + secret + "}}", "a: [{" + secret + ": 1}: 2]", "a: !!int " + secret, "a: !!float " + secret,
		"{" + secret + ": x}: y", "a: !!bool " + secret, "? [" + secret + "]\n: x", "a: @" + secret, "a: '" + secret, "a: %" + secret,
		"a: \"\\q" + secret + "\"", "~: " + secret, "a: !!timestamp " + secret, "a: |\n " + secret + "\n\tx: y\n", "a: b: " + secret,
		"- !!binary " + secret + "!", "a: &x\nb: *" + secret + " c", "<<: " + secret, "a: `" + secret + "`",
	} {
		_, err := yaml.YAMLToJSONStrict([]byte(document))
		if err == nil {
			continue // this parser accepts it
		}
		if text := redact.YAML(err.Error()); strings.Contains(text, secret) || text == "" {
			t.Errorf("%q: YAML() = %q, want text without %q and a text", document, text, secret)
		}
	}
	if got := redact.JSONType("number 12345"); got != "number" {
		t.Errorf("the type is %q, want %q", got, "number")
	}
	if got := redact.YAML(`line 5: key "kind" already set in map`); got != `line 5: key "kind" already set in map` {
		t.Errorf("a key that repeats is told as %q, want %q", got, `line 5: key "kind" already set in map`)
	}
}
