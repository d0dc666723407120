package show

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"k8s.io/cli-runtime/pkg/printers"
)

// page is a text of names and values, indented by level, with aligned values.
type page struct {
	text    bytes.Buffer
	aligned *tabwriter.Writer
}

func newPage() *page {
	p := &page{}
	p.aligned = tabwriter.NewWriter(&p.text, 0, 8, 2, ' ', 0)
	return p
}

// line adds a line whose cells, except the last, are aligned with those of adjacent lines. It removes control
// characters from containers' texts. Writing to memory does not fail.
func (p *page) line(level int, cells ...string) {
	_, _ = io.WriteString(p.aligned, strings.Repeat("  ", level)+printers.EscapeTerminal(strings.Join(cells, "\t"))+"\n")
}

// field adds a name with its values, one below the other; <none> if there are none.
func (p *page) field(level int, name string, values ...string) {
	if len(values) == 0 {
		values = []string{noValue}
	}
	p.line(level, name+":", values[0])
	for _, value := range values[1:] {
		p.line(level, "", value)
	}
}

// fieldIf adds a name with its value unless it is empty.
func (p *page) fieldIf(level int, name, value string) {
	if value != "" {
		p.field(level, name, value)
	}
}

// section begins a part of the page with separately aligned values.
func (p *page) section(level int, name string) {
	_ = p.aligned.Flush()
	p.line(level, name+":")
	_ = p.aligned.Flush()
}

// empty adds a section without content.
func (p *page) empty(name string) {
	_ = p.aligned.Flush()
	p.field(0, name)
	_ = p.aligned.Flush()
}

// table adds rows below underlined column names; <none> if there are none.
func (p *page) table(name string, columns []string, rows [][]string) {
	if len(rows) == 0 {
		p.empty(name)
		return
	}
	p.section(0, name)
	underlines := make([]string, len(columns))
	for i, c := range columns {
		underlines[i] = strings.Repeat("-", len(c))
	}
	for _, row := range append([][]string{columns, underlines}, rows...) {
		p.line(1, row...)
	}
	_ = p.aligned.Flush()
}

// writeTo writes the page without trailing blanks.
func (p *page) writeTo(out io.Writer) error {
	_ = p.aligned.Flush()
	lines := strings.Split(p.text.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	_, err := io.WriteString(out, strings.Join(lines, "\n"))
	return err
}

// pairs formats a map as key=value, sorted by key.
func pairs(m map[string]string, between string) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+between+oneLine(m[key]))
	}
	return all
}
