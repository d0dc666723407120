package applycmd

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/quartet-node/quartet/internal/redact"
)

// document is a part of a manifest that can be parsed separately.
type document struct {
	text []byte
	// before is the number of lines of the manifest before it.
	before int
	isJSON bool
}

// documentsOf splits a manifest into consecutive JSON values, or else YAML documents. It skips blank ones.
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

// jsonValues splits consecutive JSON objects; nil for other content.
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

// isSeparator reports whether a line separates two YAML documents.
func isSeparator(line []byte) bool {
	for _, sign := range []string{"---", "..."} {
		if rest, ok := bytes.CutPrefix(line, []byte(sign)); ok {
			rest = bytes.TrimSpace(rest)
			return len(rest) == 0 || rest[0] == '#'
		}
	}
	return false
}

// isBlank reports whether a document contains only space and comments.
func isBlank(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// items returns the object in the document, or the items of its list. A problem of the whole document is an item of its
// own.
func (d document) items() []item {
	data, err := d.json()
	if err != nil {
		return []item{{err: err}}
	}
	meta, err := typeOf(data)
	if err != nil {
		return []item{{err: err}}
	}
	itemKind, listed := strings.CutSuffix(meta.Kind, "List")
	switch {
	case meta.APIVersion == "v1" && meta.Kind == "List", listed && isKind(itemKind, meta.APIVersion):
		return d.list(data, itemKind)
	case isKind(meta.Kind, meta.APIVersion):
		return []item{objectIn(meta.Kind, data)}
	default:
		return []item{
			{
				err: fmt.Errorf(
					"it must have apiVersion v1 and kind Pod, ConfigMap, Secret, PersistentVolumeClaim or a list of them (List, PodList, ConfigMapList, SecretList, PersistentVolumeClaimList), or apiVersion storage.k8s.io/v1 and kind StorageClass, CSIDriver or a list of them (StorageClassList, CSIDriverList), and has %q and %q",
					meta.APIVersion,
					meta.Kind,
				),
			},
		}
	}
}

// isKind reports whether a word is a kind in a manifest, with a version of the API.
func isKind(word, version string) bool {
	k, ok := kindOf(word)
	return ok && k.inManifest() == word && k.apiVersion() == version
}

// json returns the document as JSON. A duplicate key in YAML is an error, because either value may be intended.
func (d document) json() ([]byte, error) {
	if d.isJSON {
		return d.text, nil
	}
	for n, line := range bytes.Split(d.text, []byte{'\n'}) {
		// The parser would ignore everything after it.
		if bytes.HasPrefix(line, []byte("--- ")) || bytes.HasPrefix(line, []byte("---\t")) {
			return nil, fmt.Errorf("line %d: begin the document on the line after the ---", d.before+n+1)
		}
	}
	data, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		text := redact.YAML(
			strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")), " "),
		)
		return nil, errors.New(lineNumber.ReplaceAllStringFunc(text, d.inManifest))
	}
	return data, nil
}

// lineNumber matches a line number in an error of the parser.
var lineNumber = regexp.MustCompile(`\bline \d+`)

// inManifest converts a line number of the document to that of the manifest.
func (d document) inManifest(line string) string {
	n, err := strconv.Atoi(strings.TrimPrefix(line, "line "))
	if err != nil {
		return line
	}
	return fmt.Sprintf("line %d", d.before+n)
}

// typeOf returns the type of an object.
func typeOf(data []byte) (metav1.TypeMeta, error) {
	var kind metav1.TypeMeta
	if !bytes.HasPrefix(data, []byte("{")) {
		return kind, errors.New("it is no object: write a Pod, a ConfigMap, a Secret or a PersistentVolumeClaim, with apiVersion, kind and metadata")
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &kind); err != nil {
		return kind, fmt.Errorf("its apiVersion and kind cannot be read: %w", err)
	}
	return kind, nil
}

// list returns the items of a list, whose default kind is of.
func (d document) list(data []byte, itemKind string) []item {
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
		i := itemOf(data, itemKind)
		i.place = fmt.Sprintf("items[%d]", n)
		if n < len(lines) {
			i.place += fmt.Sprintf(", line %d", lines[n])
		}
		items = append(items, i)
	}
	return items
}

// itemOf returns one item of a list, whose default kind is of.
func itemOf(data []byte, itemKind string) item {
	meta, err := typeOf(data)
	if err != nil {
		return item{err: err}
	}
	if meta.Kind == "" {
		meta.Kind = cmp.Or(itemKind, podKind.inManifest())
	}
	if meta.APIVersion == "" {
		k, _ := kindOf(meta.Kind)
		meta.APIVersion = k.apiVersion()
	}
	if !isKind(meta.Kind, meta.APIVersion) {
		return item{
			err: fmt.Errorf(
				"it must have apiVersion v1 and kind Pod, ConfigMap, Secret or PersistentVolumeClaim, or apiVersion storage.k8s.io/v1 and kind StorageClass or CSIDriver, and has %q and %q",
				meta.APIVersion,
				meta.Kind,
			),
		}
	}
	return objectIn(meta.Kind, data)
}

// linesOfItems returns the first lines of a list's items in the manifest; none if they are unknown.
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

// objectIn decodes an object strictly: unknown and duplicate fields are errors.
func objectIn(word string, data []byte) item {
	switch k, _ := kindOf(word); k {
	case configMapKind:
		config := &v1.ConfigMap{}
		err := valuesOf(data, "data", "binaryData")
		if strict := strictly(data, config); err == nil {
			err = strict
		}
		return marshaled(item{name: objectName{k, config.Namespace, config.Name}, err: err}, config.Marshal)
	case secretKind:
		secret := &v1.Secret{}
		err := valuesOf(data, "stringData", "data")
		if strict := strictly(data, secret); err == nil {
			err = strict
		}
		return marshaled(item{name: objectName{k, secret.Namespace, secret.Name}, err: err}, secret.Marshal)
	case claimKind:
		claim := &v1.PersistentVolumeClaim{}
		err := strictly(data, claim)
		return marshaled(item{name: objectName{k, claim.Namespace, claim.Name}, err: err}, claim.Marshal)
	case classKind:
		class := &storagev1.StorageClass{}
		err := strictly(data, class)
		return marshaled(item{name: objectName{k, class.Namespace, class.Name}, err: err}, class.Marshal)
	case driverKind:
		driver := &storagev1.CSIDriver{}
		err := strictly(data, driver)
		return marshaled(item{name: objectName{k, driver.Namespace, driver.Name}, err: err}, driver.Marshal)
	case volumeKind: // kindOf never returns it
		return item{err: fmt.Errorf("there is no kind %q", word)}
	case podKind:
		pod := &v1.Pod{}
		err := strictly(data, pod)
		return item{name: objectName{k, pod.Namespace, pod.Name}, pod: pod, err: err}
	default:
		return item{err: fmt.Errorf("there is no kind %q", word)}
	}
}

// marshaled sets the encoded object in its item.
func marshaled(i item, marshal func() ([]byte, error)) item {
	if i.err == nil {
		i.object, i.err = marshal()
	}
	return i
}

// strictly decodes an object. Its error contains no value, because it may be that of a secret.
func strictly(data []byte, into any) error {
	strict, err := kjson.UnmarshalStrict(data, into, kjson.DisallowDuplicateFields, kjson.DisallowUnknownFields)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return fmt.Errorf(
			"%s must not be a %s: check the indentation, and put a text that looks like something else in quotes",
			wrong.Field,
			redact.JSONType(wrong.Value),
		)
	case err != nil:
		return err
	default:
		return misspelled(strict)
	}
}

// valuesOf returns which value of a config map or a secret is not text, or not base64 where that is required; nil if
// all are valid.
func valuesOf(data []byte, texts, encoded string) error {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil {
		return errors.New("it must have fields, such as metadata and data")
	}
	for _, name := range []string{texts, encoded} {
		var values map[string]json.RawMessage
		if raw := fields[name]; len(raw) > 0 && json.Unmarshal(raw, &values) != nil {
			return fmt.Errorf("%s must have keys with a text each: write KEY: TEXT below it, indented", name)
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if err := checkValue(name, key, values[key], name == encoded, texts); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkValue returns the problem with a value in a field. It must be text, and base64 if isBase64 is set; texts is the
// field for values that are not encoded.
func checkValue(field, key string, value json.RawMessage, isBase64 bool, texts string) error {
	var text *string
	if json.Unmarshal(value, &text) != nil {
		return fmt.Errorf("%s[%s] must be a text: put it in quotes", field, key)
	}
	if !isBase64 || text == nil {
		return nil
	}
	if _, err := base64.StdEncoding.DecodeString(*text); err != nil {
		return fmt.Errorf("%s[%s] is not base64: put text that is not encoded under %s", field, key, texts)
	}
	return nil
}

// misspelled joins the errors for unknown and duplicate fields; nil without errors.
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
