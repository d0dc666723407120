package show

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

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

// siteColumns are those of a configmux that serves the nodes of a site.
var siteColumns = append([]column{{name: "Node"}}, sourceColumns...)

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
	if !output.isTable() {
		return sourceList.print(out, output, a.clock.Now(), response.GetSources())
	}
	if len(response.GetSources()) == 0 {
		_, err := fmt.Fprintln(out, "No source of pods is configured: set staticPodPath or staticPodURL in the configuration.")
		return err
	}
	shown := sourceList
	if slices.ContainsFunc(response.GetSources(), isOfSite) {
		shown.columns, shown.row = siteColumns, siteRow
	}
	if err := shown.print(out, output, a.clock.Now(), response.GetSources()); err != nil {
		return err
	}
	return a.printSourceErrors(out, response)
}

var sourceList = list[*configv1.Source]{
	many: "sources", columns: sourceColumns, row: sourceRow,
	name: func(s *configv1.Source) string { return path.Join("source", s.GetNode(), s.GetName()) },
	whole: func(out io.Writer, output format, sources []*configv1.Source) error {
		return printMessage(out, output, &configv1.ListSourcesResponse{Sources: sources})
	},
}

func sourceRow(s *configv1.Source, now time.Time) []any {
	read := "never"
	if s.GetLastReadAt() != nil {
		read = age(s.GetLastReadAt().AsTime(), now) + " ago"
	}
	return []any{
		s.GetName(), orNone(s.GetTarget()), yesNo(s.GetReady()), fmt.Sprint(s.GetPods()), fmt.Sprint(s.GetObjects()),
		orNone(s.GetMode()), read, fmt.Sprint(len(s.GetErrors())),
	}
}

func isOfSite(s *configv1.Source) bool { return s.GetNode() != "" }

func siteRow(s *configv1.Source, now time.Time) []any {
	return append([]any{s.GetNode()}, sourceRow(s, now)...)
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
				labelOf(s),
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

// watchSources prints the sources whenever anything except their times has changed. It polls, because configmux does
// not stream the state of its sources' files.
func (a *querier) watchSources(cmd *cobra.Command, output format) error {
	var shown *configv1.ListSourcesResponse
	return poll(a, cmd, layout.ConfigMux, a.listSources, func(response *configv1.ListSourcesResponse) error {
		news := withoutTimes(response)
		if shown != nil && proto.Equal(shown, news) {
			return nil
		}
		shown = news
		return a.printSources(cmd.OutOrStdout(), output, response)
	})
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

// labelOf returns the name of a source, with its node in a site.
func labelOf(s *configv1.Source) string {
	if isOfSite(s) {
		return s.GetNode() + ": " + s.GetName()
	}
	return s.GetName()
}

func yesNo(b bool) string {
	if b {
		return "true"
	}
	return "false"
}
