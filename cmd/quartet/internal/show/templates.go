package show

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"
)

// The formats with a template after an equals sign. They are kubectl's, and mean the same.
const (
	jsonPath, jsonPathFile, jsonPathAsJSON = "jsonpath", "jsonpath-file", "jsonpath-as-json"
	goTemplate, goTemplateFile             = "go-template", "go-template-file"
	customColumns, customColumnsFile       = "custom-columns", "custom-columns-file"
)

// templates are in the order in which they are listed for people.
var templates = []string{
	jsonPath,
	jsonPathAsJSON,
	jsonPathFile,
	goTemplate,
	goTemplateFile,
	customColumns,
	customColumnsFile,
}

// template returns the kind and the text of a format with a template; an empty kind for one without.
func (f format) template() (kind, text string) {
	kind, text, _ = strings.Cut(string(f), "=")
	if !slices.Contains(templates, kind) {
		return "", ""
	}
	return kind, text
}

// hasTemplate is true for a format with a template.
func (f format) hasTemplate() bool {
	kind, _ := f.template()
	return kind != ""
}

// templatePrinter returns the printer of a format with a template, or what is wrong with the template.
func templatePrinter(f format) (printers.ResourcePrinter, error) {
	kind, text := f.template()
	if text == "" {
		return nil, fmt.Errorf("%s needs a template: %s=TEMPLATE", kind, kind)
	}
	if strings.HasSuffix(kind, "-file") {
		data, err := os.ReadFile(text)
		if err != nil {
			return nil, fmt.Errorf("reading the template: %w", err)
		}
		text = string(data)
	}
	switch kind {
	case goTemplate, goTemplateFile:
		printer, err := newGoTemplatePrinter(text)
		if err != nil {
			return nil, fmt.Errorf("the template is not valid: %w", err)
		}
		return printer, nil
	case customColumns:
		return columnsOfSpec(text)
	case customColumnsFile:
		return columnsOfFile(text)
	default:
		printer, err := printers.NewJSONPathPrinter(text)
		if err != nil {
			return nil, fmt.Errorf("the template is not valid: %w", err)
		}
		printer.AllowMissingKeys(true)
		printer.EnableJSONOutput(kind == jsonPathAsJSON)
		return printer, nil
	}
}

// columnsPrinter prints a line for an object, or for each object of a list. cli-runtime has no such printer: that of
// kubectl is in a package that links every API group. It is a table of cli-runtime whose cells are found by jsonpath.
type columnsPrinter struct {
	names []string
	paths []*jsonpath.JSONPath
	// printed is true when the names are printed.
	printed bool
}

// columnsOfSpec reads NAME:PATH,NAME:PATH.
func columnsOfSpec(spec string) (*columnsPrinter, error) {
	p := &columnsPrinter{}
	for part := range strings.SplitSeq(spec, ",") {
		name, path, found := strings.Cut(part, ":")
		if !found {
			return nil, fmt.Errorf("the column %q is not NAME:PATH", part)
		}
		if err := p.add(name, path); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// columnsOfFile reads a line of names and a line of paths.
func columnsOfFile(text string) (*columnsPrinter, error) {
	names, rest, _ := strings.Cut(text, "\n")
	paths, _, _ := strings.Cut(rest, "\n")
	allNames, allPaths := strings.Fields(names), strings.Fields(paths)
	if len(allNames) == 0 || len(allNames) != len(allPaths) {
		return nil, fmt.Errorf(
			"the template has %d names in its first line and %d paths in its second",
			len(allNames),
			len(allPaths),
		)
	}
	p := &columnsPrinter{}
	for i, name := range allNames {
		if err := p.add(name, allPaths[i]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// add adds a column. The path may be without its braces and without its first dot.
func (p *columnsPrinter) add(name, path string) error {
	inner, braced := strings.CutPrefix(path, "{")
	if braced {
		inner, braced = strings.CutSuffix(inner, "}")
		if !braced {
			return fmt.Errorf("the path %q of the column %s has no closing brace", path, name)
		}
	}
	inner = strings.TrimPrefix(inner, ".")
	if inner == "" || strings.ContainsAny(inner, "{}") {
		return fmt.Errorf("the path %q of the column %s is not like .metadata.name", path, name)
	}
	parsed := jsonpath.New(name).AllowMissingKeys(true)
	if err := parsed.Parse("{." + inner + "}"); err != nil {
		return fmt.Errorf("the path %q of the column %s is not valid: %w", path, name, err)
	}
	p.names, p.paths = append(p.names, name), append(p.paths, parsed)
	return nil
}

// PrintObj implements printers.ResourcePrinter.
func (p *columnsPrinter) PrintObj(object runtime.Object, out io.Writer) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	w := printers.GetNewTabWriter(out)
	if !p.printed {
		p.printed = true
		if _, err := fmt.Fprintln(w, strings.Join(p.names, "\t")); err != nil {
			return err
		}
	}
	for _, row := range rowsOf(content) {
		cells := make([]string, 0, len(p.paths))
		for _, path := range p.paths {
			cell, err := cellOf(path, row)
			if err != nil {
				return err
			}
			cells = append(cells, cell)
		}
		if _, err := fmt.Fprintln(w, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// rowsOf returns the objects of a list, or of a message with a list; and any other object itself.
func rowsOf(content map[string]any) []any {
	_, isObject := content["kind"]
	if list, isList := content["items"].([]any); isList {
		return list
	}
	if !isObject && len(content) == 1 {
		for _, value := range content {
			if list, isList := value.([]any); isList {
				return list
			}
		}
	}
	return []any{content}
}

func cellOf(path *jsonpath.JSONPath, row any) (string, error) {
	results, err := path.FindResults(row)
	if err != nil {
		return "", err
	}
	var values []string
	for _, result := range results {
		for _, value := range result {
			values = append(values, printers.EscapeTerminal(fmt.Sprint(value.Interface())))
		}
	}
	if len(values) == 0 {
		return noValue, nil
	}
	return strings.Join(values, ","), nil
}

// printMessageBy prints a message of one of the services by a template, which finds in it what -o json shows.
func printMessageBy(options protojson.MarshalOptions, out io.Writer, f format, message proto.Message) error {
	printer, err := templatePrinter(f)
	if err != nil {
		return err
	}
	data, err := options.Marshal(message)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(data, &object.Object); err != nil {
		return err
	}
	return printer.PrintObj(object, out)
}
