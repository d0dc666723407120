package staticpod

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"sync"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/quartet-node/quartet/internal/redact"
)

// document is a part of a manifest that can be parsed separately.
type document struct {
	text []byte
	// firstLine is the line of the manifest at which the document begins, counted from 0.
	firstLine int
	isJSON    bool
}

// documentsOf splits a manifest: valid JSON is one document, everything else is a stream of YAML documents. It skips
// blank documents.
func documentsOf(data []byte) iter.Seq[document] {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // the byte order mark that some editors write
	return func(yield func(document) bool) {
		if start := bytes.TrimSpace(data); len(start) > 0 && start[0] == '{' && json.Valid(data) {
			yield(document{text: data, isJSON: true})
			return
		}
		begin, first, number, offset := 0, 0, 0, 0
		emit := func(end int) bool {
			text := data[begin:end]
			return isBlank(text) || yield(document{text: text, firstLine: first})
		}
		for line := range bytes.Lines(data) {
			number++
			next := offset + len(line)
			if ends, inline := isSeparator(line); ends {
				if !emit(offset) {
					return
				}
				begin, first = next, number
				if inline {
					begin, first = offset, number-1
				}
			}
			offset = next
		}
		emit(len(data))
	}
}

// isSeparator reports whether a line ends a YAML document, because it begins with the marker --- or ..., and whether
// the next document begins on the same line, as in "--- {kind: Pod}". No line within a document begins with a marker
// (YAML 1.2, 9.1.2).
func isSeparator(line []byte) (ends, inline bool) {
	rest, begins := bytes.CutPrefix(line, []byte("---"))
	if !begins {
		rest, ends = bytes.CutPrefix(line, []byte("..."))
		return ends && len(bytes.TrimSpace(rest)) == 0, false
	}
	text := bytes.TrimSpace(rest)
	if len(text) == 0 || len(rest) == len(bytes.TrimLeft(rest, " \t")) {
		return len(text) == 0, false
	}
	return true, text[0] != '#'
}

// object parses the document. Duplicate keys are an error, because either value may be intended.
func (d document) object() (map[string]any, error) {
	text := d.text
	if !d.isJSON {
		var err error
		if text, err = yaml.YAMLToJSONStrict(d.text); err != nil {
			return nil, d.inManifest(err)
		}
	}
	var object map[string]any
	repeated, err := kjson.UnmarshalStrict(text, &object, kjson.DisallowDuplicateFields)
	if err != nil {
		var wrongType *json.UnmarshalTypeError
		if errors.As(err, &wrongType) {
			return nil, errors.New("it is a " + wrongType.Value + " and not an object")
		}
		return nil, err
	}
	if len(repeated) > 0 {
		return nil, errors.Join(repeated...)
	}
	return object, nil
}

var lineNumber = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\bline (\d+)`) })

// inManifest converts the line numbers of a YAML error, which count from the document's beginning, to those of the
// manifest, and joins its lines.
func (d document) inManifest(err error) error {
	text := err.Error()
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:\n  "} {
		text = strings.TrimPrefix(text, prefix)
	}
	text = strings.ReplaceAll(text, "\n  ", "; ")
	text = redact.YAML(text)
	text = lineNumber().ReplaceAllStringFunc(text, func(match string) string {
		n, convErr := strconv.Atoi(strings.TrimPrefix(match, "line "))
		if convErr != nil {
			return match
		}
		return "line " + strconv.Itoa(n+d.firstLine)
	})
	return errors.New(strings.Join(strings.Fields(text), " "))
}
