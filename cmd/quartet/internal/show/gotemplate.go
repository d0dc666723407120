package show

import (
	"encoding/base64"
	"fmt"
	"io"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// goTemplatePrinter prints objects by a template, as kubectl and cli-runtime do. The templates of that one call methods
// by their names, for which the linker would keep every method of every type: see test/linked. Fields of JSON have no
// methods.
type goTemplatePrinter struct{ template *template.Template }

// newGoTemplatePrinter fails if the template is not valid. A field that is missing is printed as <no value>.
func newGoTemplatePrinter(text string) (goTemplatePrinter, error) {
	functions := template.FuncMap{"exists": exists, "base64decode": base64decode}
	parsed, err := template.New("output").Funcs(functions).Parse(text)
	return goTemplatePrinter{parsed}, err
}

// PrintObj implements printers.ResourcePrinter.
func (p goTemplatePrinter) PrintObj(obj runtime.Object, out io.Writer) error {
	data, err := utiljson.Marshal(obj)
	if err != nil {
		return err
	}
	var fields any
	if err := utiljson.Unmarshal(data, &fields); err != nil {
		return err
	}
	if err := p.template.Execute(out, fields); err != nil {
		return fmt.Errorf("the template fails for this object: %w", err)
	}
	return nil
}

// exists reports whether an item of JSON has something at a path of names and numbers that is not null.
func exists(item any, path ...any) bool {
	for _, at := range path {
		switch in := item.(type) {
		case map[string]any:
			name, ok := at.(string)
			if !ok {
				return false
			}
			item = in[name]
		case []any:
			i, ok := at.(int)
			if !ok || i < 0 || i >= len(in) {
				return false
			}
			item = in[i]
		default:
			return false
		}
	}
	return item != nil
}

func base64decode(text string) (string, error) {
	data, err := base64.StdEncoding.DecodeString(text)
	return string(data), err
}
