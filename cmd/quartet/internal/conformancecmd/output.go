package conformancecmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/quartet-node/quartet/conformance"
)

const (
	// ruleWidth is the width of the column of names. It is fixed because a line is printed before the next one is known.
	ruleWidth = len("container-died-unseen")
	// longest bounds the reason in a line of text; -o json has all of it.
	longest = 400
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

// report prints results immediately as text, or all at the end as JSON.
type report struct {
	out     io.Writer
	format  format
	results []conformance.Result
}

// add takes the next result.
func (r *report) add(result conformance.Result) {
	r.results = append(r.results, result)
	if r.format == formatJSON {
		return
	}
	if len(r.results) == 1 {
		r.row("RESULT", "RULE", "WHY")
	}
	detail := result.Comment + ": " + result.Text
	if result.Why != "" {
		detail = cut(oneLine(result.Why)) + " (" + detail + ")"
	}
	r.row(string(result.Outcome), result.Name, detail)
}

func (r *report) row(outcome, rule, detail string) {
	fmt.Fprintf(r.out, "%-6s  %-*s  %s\n", outcome, ruleWidth, rule, detail)
}

// list prints rules without results.
func (r *report) list(rules []conformance.Rule) error {
	if r.format == formatJSON {
		return r.encode(rules)
	}
	fmt.Fprintf(r.out, "%-*s  %s\n", ruleWidth, "RULE", "TEXT")
	for _, rule := range rules {
		fmt.Fprintf(r.out, "%-*s  %s: %s\n", ruleWidth, rule.Name, rule.Comment, rule.Text)
	}
	return nil
}

// document is the output of -o json.
type document struct {
	Service string               `json:"service"`
	Results []conformance.Result `json:"results"`
	Passed  int                  `json:"passed"`
	Failed  int                  `json:"failed"`
	Skipped int                  `json:"skipped"`
}

// end prints the summary. Its error ends the command: nil if no rule is broken.
func (r *report) end(service string) error {
	count := map[conformance.Outcome]int{}
	for _, result := range r.results {
		count[result.Outcome]++
	}
	passed, failed, skipped := count[conformance.Pass], count[conformance.Fail], count[conformance.Skip]
	if r.format == formatJSON {
		if err := r.encode(document{service, r.results, passed, failed, skipped}); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(r.out, "\n%d rules passed, %d failed, %d were skipped.\n", passed, failed, skipped)
	}
	if failed > 0 {
		return fmt.Errorf("%d rules of the contract of %s are broken", failed, service)
	}
	return nil
}

func (r *report) encode(value any) error {
	encoder := json.NewEncoder(r.out)
	encoder.SetIndent("", "    ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// oneLine joins the lines of a text.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// cut shortens a text.
func cut(text string) string {
	if letters := []rune(text); len(letters) > longest {
		return string(letters[:longest]) + "…"
	}
	return text
}
