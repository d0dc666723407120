// Package replayed says and prints where the replay of a part of a node differs from its recording. The replays of pleg
// and nodestatus use it.
package replayed

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Difference is one difference.
type Difference struct {
	// Time is that of the recorded change, by the clock of the recorder.
	Time time.Time `json:"time"`
	// Object is the name of what was decided about, such as a pod.
	Object string `json:"object"`
	// Action is the kind of the decision.
	Action string `json:"action"`
	// Replayed and Recorded are what each of the two did.
	Replayed string `json:"replayed"`
	Recorded string `json:"recorded"`
}

// Printer prints differences as they are found. It is used by one goroutine.
type Printer struct {
	out    io.Writer
	asJSON bool
	begun  bool
}

// NewPrinter returns a printer of text in columns, or of a JSON object on each line.
func NewPrinter(out io.Writer, asJSON bool) *Printer { return &Printer{out: out, asJSON: asJSON} }

// columns is the format of a line.
const columns = "%-8s  %-36s  %-9s  %-52s  %s\n"

// Difference prints a difference.
func (p *Printer) Difference(d Difference) error {
	if p.asJSON {
		return p.object(map[string]Difference{"difference": d})
	}
	if !p.begun {
		p.begun = true
		if _, err := fmt.Fprintf(p.out, columns, "TIME", "OBJECT", "ACTION", "REPLAYED", "RECORDED"); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(p.out, columns, d.Time.Format("15:04:05"), d.Object, d.Action, d.Replayed, d.Recorded)
	return err
}

// Summary prints the summary: a sentence, or in JSON the counts.
func (p *Printer) Summary(text string, counts any) error {
	if p.asJSON {
		return p.object(map[string]any{"summary": counts})
	}
	_, err := fmt.Fprintln(p.out, text)
	return err
}

func (p *Printer) object(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = p.out.Write(append(data, '\n'))
	return err
}
