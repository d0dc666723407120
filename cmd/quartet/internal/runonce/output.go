package runonce

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Print prints the result of each pod, one line each.
func Print(out io.Writer, results []Result) error {
	if len(results) == 0 {
		_, err := fmt.Fprintln(out, "There is no pod to run.")
		return err
	}
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 8, 3, ' ', 0)
	errs := []error{line(table, "NAMESPACE", "POD", "STATE", "REASON")}
	for _, r := range results {
		reason := ""
		if r.Err != nil {
			reason = r.Err.Error()
		}
		errs = append(errs, line(table, r.Pod.Namespace, r.Pod.Name, r.State, reason))
	}
	errs = append(errs, table.Flush())
	for row := range strings.Lines(text.String()) {
		_, err := fmt.Fprintln(out, strings.TrimRight(row, " \n"))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func line(out io.Writer, cells ...string) error {
	_, err := fmt.Fprintln(out, strings.Join(cells, "\t"))
	return err
}

// Failed returns an error that names the pods that do not run; nil if all do.
func Failed(results []Result) error {
	var names []string
	for _, r := range results {
		if r.Err != nil {
			names = append(names, r.Pod.String())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf(
		"%d of %d pods do not run: %s: see quartet describe pod, once the node runs",
		len(names),
		len(results),
		strings.Join(names, ", "),
	)
}
