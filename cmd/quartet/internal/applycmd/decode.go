package applycmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// document is a part of a manifest that can be parsed by itself.
type document struct {
	text []byte
	// before is how many lines the manifest has before it.
	before int
	isJSON bool
}

// documentsOf splits a manifest: JSON values that follow each other, or else YAML documents. Blank ones are left out.
func documentsOf(data []byte) []document {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // the byte order mark that some editors write
	if documents := jsonValues(data); documents != nil {
		return documents
	}
	var documents []document
	begin, before, lines, offset := 0, 0, 0, 0
	end := func() {
		if text := data[begin:offset]; !isBlank(text) {
			documents = append(documents, document{text: text, before: before})
		}
	}
	for line := range bytes.Lines(data) {
		lines++
		if isSeparator(line) {
			end()
			begin, before = offset+len(line), lines
		}
		offset += len(line)
	}
	end()
	return documents
}

// jsonValues splits JSON objects that follow each other; nil when the manifest is something else.
func jsonValues(data []byte) []document {
	if start := bytes.TrimSpace(data); len(start) == 0 || start[0] != '{' {
		return nil
	}
	var documents []document
	for decoder := json.NewDecoder(bytes.NewReader(data)); ; {
		var value json.RawMessage
		err := decoder.Decode(&value)
		if errors.Is(err, io.EOF) {
			return documents
		}
		if err != nil {
			return nil
		}
		begin := int(decoder.InputOffset()) - len(value)
		documents = append(documents, document{text: value, before: bytes.Count(data[:begin], []byte{'\n'}), isJSON: true})
	}
}

// isSeparator reports whether a line is between two YAML documents.
func isSeparator(line []byte) bool {
	for _, sign := range []string{"---", "..."} {
		if rest, is := bytes.CutPrefix(line, []byte(sign)); is {
			rest = bytes.TrimSpace(rest)
			return len(rest) == 0 || rest[0] == '#'
		}
	}
	return false
}

// isBlank reports whether a document has nothing but space and comments.
func isBlank(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// items returns the pod that the document is, or the items of the list that it is. What is wrong with the document as a whole
// is an item of its own.
func (d document) items() []item {
	data, err := d.json()
	if err != nil {
		return []item{{err: err}}
	}
	kind, err := kindOf(data)
	switch {
	case err != nil:
		return []item{{err: err}}
	case kind.APIVersion == "v1" && kind.Kind == "Pod":
		return []item{podIn(data)}
	case kind.APIVersion == "v1" && (kind.Kind == "List" || kind.Kind == "PodList"):
		return d.list(data)
	default:
		return []item{{err: fmt.Errorf("it must have apiVersion v1 and kind Pod, PodList or List, and has %q and %q", kind.APIVersion, kind.Kind)}}
	}
}

// json is the document as JSON. A key that is there twice in YAML is an error: of two values, nobody knows which was meant.
func (d document) json() ([]byte, error) {
	if d.isJSON {
		return d.text, nil
	}
	for n, line := range bytes.Split(d.text, []byte{'\n'}) {
		// The parser would read what is before it, and leave the rest unread.
		if bytes.HasPrefix(line, []byte("--- ")) || bytes.HasPrefix(line, []byte("---\t")) {
			return nil, fmt.Errorf("line %d: begin the document on the line after the ---", d.before+n+1)
		}
	}
	data, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		text := strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")), " ")
		return nil, errors.New(lineNumber.ReplaceAllStringFunc(text, d.inManifest))
	}
	return data, nil
}

// lineNumber is how the parser tells a line of the document.
var lineNumber = regexp.MustCompile(`\bline \d+`)

// inManifest turns "line 3" of the document into that of the manifest.
func (d document) inManifest(line string) string {
	n, err := strconv.Atoi(strings.TrimPrefix(line, "line "))
	if err != nil {
		return line
	}
	return fmt.Sprintf("line %d", d.before+n)
}

// kindOf returns what an object says it is.
func kindOf(data []byte) (metav1.TypeMeta, error) {
	var kind metav1.TypeMeta
	if !bytes.HasPrefix(data, []byte("{")) {
		return kind, errors.New("it is no object: write a Pod, with apiVersion, kind, metadata and spec")
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &kind); err != nil {
		return kind, fmt.Errorf("its apiVersion and kind cannot be read: %w", err)
	}
	return kind, nil
}

// list returns the items of a list.
func (d document) list(data []byte) []item {
	var list struct {
		metav1.TypeMeta `json:",inline"`

		Metadata json.RawMessage   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	strict, err := kjson.UnmarshalStrict(data, &list, kjson.DisallowDuplicateFields, kjson.DisallowUnknownFields)
	if err == nil {
		err = misspelled(strict)
	}
	var items []item
	if err != nil {
		items = append(items, item{err: err})
	}
	lines := d.linesOfItems()
	for n, data := range list.Items {
		i := itemOf(data)
		i.place = fmt.Sprintf("items[%d]", n)
		if n < len(lines) {
			i.place += fmt.Sprintf(", line %d", lines[n])
		}
		items = append(items, i)
	}
	return items
}

// itemOf returns one item of a list. What it does not say of its kind the list has said.
func itemOf(data []byte) item {
	kind, err := kindOf(data)
	switch {
	case err != nil:
		return item{err: err}
	case (kind.APIVersion == "v1" || kind.APIVersion == "") && (kind.Kind == "Pod" || kind.Kind == ""):
		return podIn(data)
	default:
		return item{err: fmt.Errorf("it must have apiVersion v1 and kind Pod, and has %q and %q", kind.APIVersion, kind.Kind)}
	}
}

// linesOfItems returns the lines of the manifest that the items of a list begin on; none when they cannot be told.
func (d document) linesOfItems() []int {
	var root yamlv3.Node
	if err := yamlv3.Unmarshal(d.text, &root); err != nil || len(root.Content) == 0 {
		return nil
	}
	fields := root.Content[0].Content
	var lines []int
	for n := 0; n+1 < len(fields); n += 2 {
		if fields[n].Value != "items" {
			continue
		}
		for _, node := range fields[n+1].Content {
			lines = append(lines, d.before+node.Line)
		}
	}
	return lines
}

// podIn makes a pod of an object, strictly: what is not understood is an error, and so is what is said twice.
func podIn(data []byte) item {
	pod := &v1.Pod{}
	strict, err := kjson.UnmarshalStrict(data, pod, kjson.DisallowDuplicateFields, kjson.DisallowUnknownFields)
	if err == nil {
		err = misspelled(strict)
	}
	return item{name: podName{pod.Namespace, pod.Name}, pod: pod, err: err}
}

// misspelled makes one error of what is not known or there twice; nil of none.
func misspelled(strict []error) error {
	if len(strict) == 0 {
		return nil
	}
	texts := make([]string, 0, len(strict))
	for _, e := range strict {
		texts = append(texts, "\n    "+e.Error())
	}
	return errors.New("check the spelling and the indentation of:" + strings.Join(texts, ""))
}
