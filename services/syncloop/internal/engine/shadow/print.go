package shadow

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Printer prints differences as they are found, and the summary at the end. It is used by one goroutine at a time.
type Printer struct {
	out    io.Writer
	asJSON bool
	begun  bool
}

// NewPrinter returns a printer of text in columns, or of a JSON object on each line.
func NewPrinter(out io.Writer, asJSON bool) *Printer { return &Printer{out: out, asJSON: asJSON} }

// columns is the format of a line.
const columns = "%-8s  %-36s  %-7s  %-52s  %s\n"

// Difference prints a difference.
func (p *Printer) Difference(d Difference) error {
	if p.asJSON {
		return p.object(struct {
			Difference `json:"difference"`
		}{d})
	}
	if !p.begun {
		p.begun = true
		if _, err := fmt.Fprintf(p.out, columns, "TIME", "POD", "ACTION", "SHADOW", "RUNNING"); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(p.out, columns, d.Time.Format("15:04:05"), d.Namespace+"/"+d.Pod, d.Action, d.Shadow, d.Running)
	return err
}

// Summary prints the summary.
func (p *Printer) Summary(s Summary) error {
	if p.asJSON {
		return p.object(struct {
			Summary `json:"summary"`
		}{s})
	}
	if !s.Compared {
		_, err := fmt.Fprintln(p.out, "Nothing was compared: the node's processes have not sent their state.")
		return err
	}
	_, err := fmt.Fprintf(p.out, "Compared %d pods. Decisions: %s. Differences: %s. Evictions followed: %d.\n",
		s.Pods, counted(s.Decisions), counted(s.Differences), s.Followed)
	return err
}

// counted returns the counts in the order of the actions, such as "3 (sandbox 1, start 2)".
func counted(counts map[Action]int) string {
	total := 0
	var parts []string
	for _, action := range Actions() {
		if n := counts[action]; n > 0 {
			total += n
			parts = append(parts, fmt.Sprintf("%s %d", action, n))
		}
	}
	if total == 0 {
		return "none"
	}
	return fmt.Sprintf("%d (%s)", total, strings.Join(parts, ", "))
}

func (p *Printer) object(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = p.out.Write(append(data, '\n'))
	return err
}
