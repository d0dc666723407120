package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/quartet-node/quartet/internal/machine"
)

const (
	// checkWidth and levelWidth are the widths of the first two columns. They are fixed because a line is printed before
	// the next one is known; checkWidth fits the longest name of a check.
	checkWidth = len("mount propagation")
	levelWidth = len("warning")
)

// format is the value of -o.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// Set implements pflag.Value.
func (f *format) Set(text string) error {
	if text != string(formatText) && text != string(formatJSON) {
		return errors.New("must be text or json")
	}
	*f = format(text)
	return nil
}

// report prints findings immediately, or all at the end.
type report struct {
	out      io.Writer
	format   format
	findings machine.Findings
}

// begin prints the header of the table.
func (r *report) begin() error {
	if r.format == formatJSON {
		return nil
	}
	return r.row("CHECK", "RESULT", "DETAIL")
}

func (r *report) row(check, level, detail string) error {
	line := fmt.Sprintf("%-*s  %-*s  %s", checkWidth, check, levelWidth, level, detail)
	_, err := fmt.Fprintln(r.out, strings.TrimRight(line, " "))
	return err
}

// show prints findings, each problem with its fix below it.
func (r *report) show(findings []machine.Finding) error {
	r.findings = append(r.findings, findings...)
	if r.format == formatJSON {
		return nil
	}
	for _, f := range findings {
		if err := r.row(f.Check, f.Level.String(), oneLine(f.Detail)); err != nil {
			return err
		}
		if f.Fix == "" {
			continue
		}
		if err := r.row("", "", "fix: "+oneLine(f.Fix)); err != nil {
			return err
		}
	}
	return nil
}

// document is the output of -o json.
type document struct {
	Findings machine.Findings `json:"findings"`
	Faults   int              `json:"faults"`
	Warnings int              `json:"warnings"`
}

// end prints the summary. Its error ends the command: nil unless there is a fault.
func (r *report) end() error {
	faults, warnings := r.findings.Count(machine.Fault), r.findings.Count(machine.Warning)
	if r.format == formatJSON {
		encoder := json.NewEncoder(r.out)
		encoder.SetIndent("", "    ")
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(document{Findings: r.findings, Faults: faults, Warnings: warnings}); err != nil {
			return cannotRun(err)
		}
	}
	switch {
	case faults > 0:
		return &ExitError{
			Code: exitFault,
			Err:  fmt.Errorf("%s and %s: each has its fix", count(faults, "fault"), count(warnings, "warning")),
		}
	case r.format == formatText:
		_, err := fmt.Fprintf(r.out, "\nThis machine can run a node; %s.\n", count(warnings, "warning"))
		return cannotRun(err)
	default:
		return nil
	}
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// oneLine joins the lines of a text.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
