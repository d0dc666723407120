package show

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// sourcesInterval is the polling interval of -w, because configmux does not stream the state of its sources' files.
const sourcesInterval = time.Second

var sourceColumns = []column{
	{
		name: "Name",
	},
	{name: "Target"},
	{name: "Ready"},
	{name: "Pods"},
	{name: "Objects", wide: true},
	{name: "Mode"},
	{name: "Last read"},
	{name: "Errors"},
}

func (a *querier) sourcesCommand() *cobra.Command {
	var output format
	var watch bool
	cmd := &cobra.Command{
		Use:     "sources",
		Aliases: []string{"source"},
		Short:   "Show the sources of pods, and all their errors",
		Long: "Show the sources of pods, when they were last read, and all their errors: the file, the field,\n" +
			"and the remedy. An error in a source is no failure of this command.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch {
				return a.watchSources(cmd, output)
			}
			response, err := a.listSources(cmd.Context())
			if err != nil {
				return err
			}
			return a.printSources(cmd.OutOrStdout(), output, response)
		},
	}
	a.addFlags(cmd, &output, &watch)
	return cmd
}

func (a *querier) listSources(ctx context.Context) (*configv1.ListSourcesResponse, error) {
	return ask(
		ctx,
		a,
		layout.ConfigMux,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*configv1.ListSourcesResponse, error) {
			return configv1.NewConfigServiceClient(conn).ListSources(ctx, &configv1.ListSourcesRequest{})
		},
	)
}

func (a *querier) printSources(out io.Writer, output format, response *configv1.ListSourcesResponse) error {
	switch output {
	case formatName:
		for _, s := range response.GetSources() {
			if _, err := fmt.Fprintf(out, "source/%s\n", s.GetName()); err != nil {
				return err
			}
		}
		return nil
	case formatTable, formatWide:
	case formatJSON, formatYAML:
		return printMessage(out, output, response)
	default: // a template
		return printMessage(out, output, response)
	}
	if len(response.GetSources()) == 0 {
		_, err := fmt.Fprintln(
			out,
			"No source of pods is configured: set staticPodPath or staticPodURL in the configuration.",
		)
		return err
	}
	var rows [][]any
	for _, s := range response.GetSources() {
		read := "never"
		if s.GetLastReadAt() != nil {
			read = age(s.GetLastReadAt().AsTime(), a.clock.Now()) + " ago"
		}
		rows = append(rows, []any{
			s.GetName(),
			orNone(s.GetTarget()),
			yesNo(s.GetReady()),
			fmt.Sprint(s.GetPods()),
			fmt.Sprint(s.GetObjects()),
			orNone(s.GetMode()),
			read,
			fmt.Sprint(len(s.GetErrors())),
		})
	}
	if err := newTable(out, output, sourceColumns, false).print(rows...); err != nil {
		return err
	}
	return a.printSourceErrors(out, response)
}

// printSourceErrors prints each error below the table: its place, and its message on a separate line.
func (a *querier) printSourceErrors(out io.Writer, response *configv1.ListSourcesResponse) error {
	for _, s := range response.GetSources() {
		for _, e := range s.GetErrors() {
			where := orNone(e.GetPath())
			if e.GetPod() != "" {
				where += ": pod " + e.GetPod()
			}
			if e.GetObject() != "" {
				where += ": " + e.GetObject()
			}
			if e.GetField() != "" {
				where += ": " + e.GetField()
			}
			seen := ""
			if e.GetLastSeenAt() != nil {
				seen = " (seen " + age(e.GetLastSeenAt().AsTime(), a.clock.Now()) + " ago"
				if e.GetCount() > 1 {
					seen += fmt.Sprintf(", %d times since %s ago", e.GetCount(), age(e.GetFirstSeenAt().AsTime(), a.clock.Now()))
				}
				seen += ")"
			}
			if _, err := fmt.Fprintf(
				out,
				"\n%s: %s%s\n    %s\n",
				s.GetName(),
				where,
				seen,
				oneLine(e.GetMessage()),
			); err != nil {
				return err
			}
		}
	}
	return nil
}

// watchSources prints the sources whenever anything except their times has changed.
func (a *querier) watchSources(cmd *cobra.Command, output format) error {
	ctx := cmd.Context()
	response, err := a.listSources(ctx)
	if err != nil {
		return err
	}
	ticker := a.clock.NewTicker(sourcesInterval)
	defer ticker.Stop()
	var shown *configv1.ListSourcesResponse
	unreachable := false
	for {
		switch {
		case err != nil && ctx.Err() == nil && !unreachable:
			unreachable = true
			if _, err := fmt.Fprintln(
				cmd.ErrOrStderr(),
				"configmux is unreachable; waiting until it is reachable again",
			); err != nil {
				return err
			}
		case err == nil:
			unreachable = false
			if news := withoutTimes(response); shown == nil || !proto.Equal(shown, news) {
				if err := a.printSources(cmd.OutOrStdout(), output, response); err != nil {
					return err
				}
				shown = news
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		response, err = a.listSources(ctx)
	}
}

func withoutTimes(response *configv1.ListSourcesResponse) *configv1.ListSourcesResponse {
	timeless := proto.CloneOf(response)
	for _, s := range timeless.GetSources() {
		s.LastReadAt = nil
		for _, e := range s.GetErrors() {
			e.LastSeenAt, e.Count = nil, 0
		}
	}
	return timeless
}

func yesNo(b bool) string {
	if b {
		return "true"
	}
	return "false"
}
