package trace

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

// For any answer of Jaeger, each span is shown once, nothing breaks the lines, and no time is negative.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"result":{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"pleg"}}]},"scopeSpans":[{"spans":[` +
			`{"traceId":"11111111111111111111111111111111","spanId":"aaaaaaaaaaaaaaaa","parentSpanId":"aaaaaaaaaaaaaaaa","name":"x","startTimeUnixNano":"1000","endTimeUnixNano":"3000",` +
			`"attributes":[{"key":"n","value":{"intValue":"3"}},{"key":"l","value":{"arrayValue":{"values":[{"boolValue":true}]}}}],` +
			`"events":[{"attributes":[{"key":"exception.message","value":{"doubleValue":3}}]}],"links":[{"traceId":"2222"}],"status":{"code":2}}]}]}]}}`,
		`{"result":{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":"aaaa","startTimeUnixNano":"18446744073709551615"}]}]}]}}`,
		`{"result":{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":"aaaa","startTimeUnixNano":"9","endTimeUnixNano":"3"}]}]}]}}`,
		`{"error":{"httpCode":404,"message":"trace not found"}}`,
	} {
		f.Add([]byte(seed), uint8(80))
	}
	f.Fuzz(func(t *testing.T, data []byte, width uint8) {
		traces, err := decode(data)
		if err != nil {
			return
		}
		for _, tr := range traces {
			s := newStart(subject{namespace: "default", name: "pod", span: "a"}, tr, true)
			if got := len(s.lines(s.tree.tops())); got != len(tr.spans) {
				t.Fatalf("%d spans are shown of %d", got, len(tr.spans))
			}
			if s.self < 0 || s.window.length() < 0 || s.idle.length() < 0 {
				t.Fatalf("negative times: %+v", s)
			}
			text := draw(s, style{width: int(width)})
			if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }); i >= 0 {
				t.Fatalf("a control character at %d of %q", i, text)
			}
			var out bytes.Buffer
			if err := s.printJSON(&out); err != nil || !json.Valid(out.Bytes()) {
				t.Fatal(err)
			}
		}
	})
}
