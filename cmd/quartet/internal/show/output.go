package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"
)

// format is the value of -o; empty for the plain table.
type format string

const (
	formatTable format = ""
	formatWide  format = "wide"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
	formatName  format = "name"
)

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// Set implements pflag.Value.
func (f *format) Set(text string) error {
	if given := format(text); given.hasTemplate() {
		if _, err := templatePrinter(given); err != nil {
			return err
		}
	} else if !slices.Contains([]format{formatWide, formatJSON, formatYAML, formatName}, given) {
		return errors.New("must be wide, json, yaml or name, or one of " + strings.Join(templates, ", ") + " with =TEMPLATE")
	}
	*f = format(text)
	return nil
}

func (f format) isTable() bool { return f == formatTable || f == formatWide }

// column is a column of a table.
type column struct {
	name string
	// wide is true for a column that only -o wide shows.
	wide bool
	// watched is the minimum width in a watch, so that common rows stay aligned.
	watched int
}

// table prints aligned rows. Later rows keep the widths of earlier ones.
type table struct {
	columns []metav1.TableColumnDefinition
	printer printers.ResourcePrinter
	out     interface {
		io.Writer
		Flush() error
	}
}

func newTable(out io.Writer, f format, columns []column, watch bool) *table {
	t := &table{
		printer: printers.NewTablePrinter(printers.PrintOptions{Wide: f == formatWide}),
		out:     printers.GetNewTabWriter(out),
	}
	for _, c := range columns {
		definition := metav1.TableColumnDefinition{Name: c.name, Type: "string"}
		if watch {
			definition.Name = fmt.Sprintf("%-*s", c.watched, c.name)
		}
		if c.wide {
			definition.Priority = 1
		}
		t.columns = append(t.columns, definition)
	}
	return t
}

// print prints rows; the first time below the column names.
func (t *table) print(rows ...[]any) error {
	printed := &metav1.Table{ColumnDefinitions: t.columns}
	for _, cells := range rows {
		printed.Rows = append(printed.Rows, metav1.TableRow{Cells: cells})
	}
	if err := t.printer.PrintObj(printed, t.out); err != nil {
		return err
	}
	return t.out.Flush()
}

// printObject prints a Kubernetes object that has its kind.
func printObject(out io.Writer, f format, object runtime.Object) error {
	printer, err := objectPrinter(f)
	if err != nil {
		return err
	}
	return printer.PrintObj(object, out)
}

// objectPrinter prints Kubernetes objects that have their kind, one after another.
func objectPrinter(f format) (printers.ResourcePrinter, error) {
	if f.hasTemplate() {
		return templatePrinter(f)
	}
	switch f {
	case formatJSON:
		return &printers.JSONPrinter{}, nil
	case formatYAML:
		return &printers.YAMLPrinter{}, nil
	case formatName:
		return &printers.NamePrinter{}, nil
	case formatTable, formatWide:
		return nil, fmt.Errorf("a table has no single objects")
	default:
		return nil, fmt.Errorf("there is no format %q", f)
	}
}

// printMessage prints a message of a service deterministically.
func printMessage(out io.Writer, f format, message proto.Message) error {
	return printWith(protojson.MarshalOptions{EmitDefaultValues: true}, out, f, message)
}

// printWith prints a message of a service with options for its fields.
func printWith(options protojson.MarshalOptions, out io.Writer, f format, message proto.Message) error {
	if f.hasTemplate() {
		return printMessageBy(options, out, f, message)
	}
	data, err := options.Marshal(message)
	if err != nil {
		return err
	}
	if f == formatYAML {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
		_, err = out.Write(data)
		return err
	}
	// protojson varies its white space on purpose.
	var compact, indented bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return err
	}
	if err := json.Indent(&indented, compact.Bytes(), "", "    "); err != nil {
		return err
	}
	indented.WriteByte('\n')
	_, err = indented.WriteTo(out)
	return err
}

const (
	noValue = "<none>"
	unknown = "<unknown>"
)

func orNone(text string) string {
	if text == "" {
		return noValue
	}
	return text
}

// age returns the age of something, as kubectl formats it.
func age(at, now time.Time) string {
	if at.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(at))
}

// oneLine joins the lines of a text.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
