package nodeconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	yaml3 "go.yaml.in/yaml/v3"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Decoded is a decoded file with defaults.
type Decoded struct {
	// Kubelet is the file's content.
	Kubelet kubeletconfigv1beta1.KubeletConfiguration

	file  string
	index index
	// empty is the set of the top-level fields of the file whose value is empty.
	empty map[string]bool
}

// index maps the path of each field to its line in the file. A field without an entry is not set.
type index map[string]int

func (i index) has(field string) bool { return i[field] > 0 }

const (
	wantAPIVersion = "kubelet.config.k8s.io/v1beta1"
	wantKind       = "KubeletConfiguration"
)

// Decode decodes a file strictly, sets defaults and validates it. The path is for error messages and for resolving
// relative paths in the file; nothing is read from it. It returns all problems in the order of lines.
func Decode(path string, data []byte) (Decoded, []error) {
	decoded := Decoded{file: path, index: index{}}
	errs := &problems{file: path, index: decoded.index}
	root, err := parseOneDocument(data)
	if err != nil {
		errs.addSyntax(err)
		return decoded, errs.sorted()
	}
	if root != nil {
		indexNode(root, "", errs)
		decoded.empty = emptyFields(root)
		decodeFields(data, root, &decoded.Kubelet, errs)
	}
	checkKind(&decoded.Kubelet, errs)
	// A field that could not be decoded has no value to validate.
	if len(errs.list) == 0 {
		setDefaults(&decoded.Kubelet)
		resolvePaths(path, &decoded.Kubelet)
		validate(&decoded.Kubelet, errs)
	}
	return decoded, errs.sorted()
}

// parseOneDocument returns the top-level mapping of the file, or nil for an empty file.
func parseOneDocument(data []byte) (*yaml3.Node, error) {
	decoder := yaml3.NewDecoder(bytes.NewReader(data))
	var doc yaml3.Node
	if err := decoder.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, fmt.Errorf("this is not YAML: %w", err)
	}
	var second yaml3.Node
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document in the file: leave one KubeletConfiguration in it")
	}
	root := doc.Content[0]
	if root.Kind == yaml3.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml3.MappingNode {
		return nil, errors.New("the file must be a mapping of fields to values")
	}
	return root, nil
}

// emptyFields returns the top-level fields whose value is null, zero or empty.
func emptyFields(root *yaml3.Node) map[string]bool {
	empty := make(map[string]bool)
	for i := 0; i+1 < len(root.Content); i += 2 {
		value := root.Content[i+1]
		switch value.Kind {
		case yaml3.ScalarNode:
			empty[root.Content[i].Value] = value.Tag == "!!null" || slices.Contains([]string{"", "0", "0s"}, value.Value)
		case yaml3.MappingNode, yaml3.SequenceNode:
			empty[root.Content[i].Value] = len(value.Content) == 0
		case yaml3.DocumentNode, yaml3.AliasNode:
		default:
		}
	}
	return empty
}

// indexNode records the line of each field below a node, and reports duplicate fields. It does not follow aliases:
// their fields have the line of the alias.
func indexNode(node *yaml3.Node, path string, errs *problems) {
	switch node.Kind {
	case yaml3.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			field := joinField(path, key.Value)
			if first := errs.index[field]; first > 0 && key.Value != "<<" {
				errs.addAt(key.Line, field, fmt.Sprintf("is given twice, first on line %d: remove one", first))
				continue
			}
			errs.index[field] = key.Line
			indexNode(value, field, errs)
		}
	case yaml3.SequenceNode:
		for i, item := range node.Content {
			field := fmt.Sprintf("%s[%d]", path, i)
			errs.index[field] = item.Line
			indexNode(item, field, errs)
		}
	case yaml3.DocumentNode, yaml3.ScalarNode, yaml3.AliasNode:
	default:
	}
}

func joinField(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// decodeFields decodes one top-level field after the other, so that an invalid field does not hide other problems.
func decodeFields(data []byte, root *yaml3.Node, into *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	asJSON, err := yaml.YAMLToJSON(data)
	if err != nil {
		errs.addSyntax(fmt.Errorf("this is not YAML: %w", err))
		return
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(asJSON, &fields); err != nil {
		errs.addAt(root.Line, "", fmt.Sprintf("the file must be a mapping of fields to values: %v", err))
		return
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		decodeField(name, fields[name], into, errs)
	}
}

func decodeField(name string, value json.RawMessage, into *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	one, err := json.Marshal(map[string]json.RawMessage{name: value})
	if err != nil {
		errs.add(name, err.Error())
		return
	}
	strict, err := kjson.UnmarshalStrict(one, into)
	for _, problem := range strict {
		field := name
		var located kjson.FieldError
		if errors.As(problem, &located) {
			field = located.FieldPath()
		}
		errs.add(field, unknownField(field))
	}
	var wrongType *json.UnmarshalTypeError
	switch {
	case err == nil:
	case errors.As(err, &wrongType):
		errs.add(wrongType.Field, fmt.Sprintf("must be %s, not %s", typeName(wrongType.Type), wrongType.Value))
	default:
		errs.add(name, err.Error())
	}
}

func unknownField(field string) string {
	known := fieldNames()
	best, distance := "", 3
	for _, name := range known {
		if d := editDistance(strings.ToLower(field), strings.ToLower(name)); d < distance {
			best, distance = name, d
		}
	}
	if best == "" {
		return "there is no such field in a KubeletConfiguration: remove it"
	}
	return fmt.Sprintf("there is no such field in a KubeletConfiguration: did you mean %s?", best)
}

// fieldNames returns the names of the top-level fields.
func fieldNames() []string {
	t := reflect.TypeFor[kubeletconfigv1beta1.KubeletConfiguration]()
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// editDistance returns the Levenshtein distance: the number of inserted, deleted and replaced letters.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func typeName(t reflect.Type) string {
	switch t.Kind() { //nolint:exhaustive // the configuration has no other kinds, and they would be named as Go does
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a mapping"
	default:
		return "a " + t.String()
	}
}

func checkKind(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	for _, want := range []struct{ field, value, got string }{
		{"apiVersion", wantAPIVersion, cfg.APIVersion},
		{"kind", wantKind, cfg.Kind},
	} {
		switch {
		case want.got == want.value:
		case want.got == "" && !errs.index.has(want.field):
			errs.add(want.field, "is missing: must be "+want.value)
		default:
			errs.add(want.field, fmt.Sprintf("is %q, must be %s", want.got, want.value))
		}
	}
}

// problems collects the problems of one file.
type problems struct {
	file  string
	index index
	list  []*FieldError
}

// add adds a problem at the line of the field, or of the nearest field around it.
func (p *problems) add(field, problem string) {
	line := 0
	for at := field; at != "" && line == 0; at = parentField(at) {
		line = p.index[at]
	}
	p.addAt(line, field, problem)
}

func (p *problems) addAt(line int, field, problem string) {
	p.list = append(p.list, &FieldError{File: p.file, Line: line, Field: field, Problem: problem})
}

// lineInText matches the line number in an error of the YAML parsers.
var lineInText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(yaml: )?line (\d+): `) })

// addSyntax adds an error of a YAML parser, which has the line only in its text.
func (p *problems) addSyntax(err error) {
	text, line := err.Error(), 0
	if match := lineInText().FindStringSubmatch(text); match != nil {
		if number, err := strconv.Atoi(match[2]); err == nil {
			line = number
			text = strings.Replace(text, match[0], "", 1)
		}
	}
	p.addAt(line, "", text)
}

func (p *problems) sorted() []error {
	slices.SortStableFunc(p.list, func(a, b *FieldError) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Field, b.Field))
	})
	errs := make([]error, len(p.list))
	for i, err := range p.list {
		errs[i] = err
	}
	return errs
}

func parentField(field string) string {
	cut := strings.LastIndexAny(field, ".[")
	if cut < 0 {
		return ""
	}
	return field[:cut]
}
