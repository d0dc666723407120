package show

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/internal/layout"
)

// pollInterval is the polling interval of -w for what a service does not stream.
const pollInterval = time.Second

// list is how a command prints items of a kind.
type list[T any] struct {
	// many is the plural of the kind.
	many    string
	columns []column
	// name returns an item as -o name prints it, and row its cells in a table.
	name func(T) string
	row  func(T, time.Time) []any
	// whole prints items in the other formats.
	whole func(io.Writer, format, []T) error
}

// show prints items, or that there are none of the selection.
func (l list[T]) show(cmd *cobra.Command, output format, s selection, now time.Time, items []T) error {
	if output.isTable() && len(items) == 0 {
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), "There are no %s %s.\n", l.many, s.where())
		return err
	}
	return l.print(cmd.OutOrStdout(), output, now, items)
}

// print prints items.
func (l list[T]) print(out io.Writer, output format, now time.Time, items []T) error {
	switch {
	case output.isTable():
		rows := make([][]any, 0, len(items))
		for _, item := range items {
			rows = append(rows, l.row(item, now))
		}
		return newTable(out, output, l.columns, false).print(rows...)
	case output == formatName:
		for _, item := range items {
			if _, err := fmt.Fprintln(out, l.name(item)); err != nil {
				return err
			}
		}
		return nil
	default:
		return l.whole(out, output, items)
	}
}

// poll prints what a service answers whenever it is news, until the context of the command ends. It reports a service
// that becomes unreachable once, and goes on when it answers again.
func poll[R any](
	a *querier, cmd *cobra.Command, service layout.Service, call func(context.Context) (R, error), print func(R) error,
) error {
	ctx := cmd.Context()
	response, err := call(ctx)
	if err != nil {
		return err
	}
	ticker := a.clock.NewTicker(pollInterval)
	defer ticker.Stop()
	unreachable := false
	for {
		switch {
		case err != nil && ctx.Err() == nil && !unreachable:
			unreachable = true
			_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s is unreachable; waiting until it is reachable again\n", service)
			if err != nil {
				return err
			}
		case err == nil:
			unreachable = false
			if err := print(response); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		response, err = call(ctx)
	}
}

// nodeFor returns the name of the node, by which a selection names static pods; empty if it names none.
func (a *querier) nodeFor(ctx context.Context, s selection) string {
	if len(s.names) == 0 {
		return ""
	}
	views, _ := a.listPods(ctx) // without them the node's name is the machine's
	return nodeOf(views)
}

// meansSome fails if an argument selects none of the existing pods, which are sorted.
func (s selection) meansSome(existing []podName) error {
	for _, argument := range s.names {
		if slices.ContainsFunc(existing, func(n podName) bool { return s.means(argument, n) }) {
			continue
		}
		var titles []string
		for _, n := range existing {
			titles = append(titles, title(n.namespace, cmp.Or(n.name, n.uid)))
		}
		return s.noSuchPod(argument, slices.Compact(titles))
	}
	return nil
}
