package show

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

var workerColumns = []column{
	{
		name: "Name",
	},
	{name: "State"},
	{name: "Since", wide: true},
	{name: "Busy"},
	{name: "Pending"},
	{name: "Next"},
	{name: "Stops", wide: true},
	{name: "UID", wide: true},
	{name: "Waits for"},
	{name: "Last error"},
}

func (a *querier) workersCommand() *cobra.Command {
	var output format
	var s selection
	cmd := &cobra.Command{
		Use:     "workers [POD...]",
		Aliases: []string{"worker"},
		Short:   "Show syncloop's workers, one for each pod, and their errors",
		Long: "Show the workers of syncloop, one for each pod: their activity, their last error, what they wait for, and\n" +
			"their next run.\n\n" +
			"  STATE       Syncing makes the runtime match the pod, Terminating stops it, Terminated has nothing of it running\n" +
			"  BUSY        it works at this moment\n" +
			"  PENDING     a change waits for the end of that work, or the pod for the end of another one\n" +
			"  NEXT        time until its next run if nothing changes before: the next retry\n" +
			"  WAITS FOR   delayed containers, with the reason, or the pod of the same name that has to end first\n" +
			"  LAST ERROR  why its last work failed\n" +
			"  STOPS       time until the end of a terminating pod's grace period (-o wide)",
		Example: "  quartet get workers\n  quartet get workers hello-" + hostname() + " -o wide",
		RunE: func(cmd *cobra.Command, args []string) error {
			s.names = args
			if err := s.check(); err != nil {
				return err
			}
			return a.getWorkers(cmd, output, s)
		},
	}
	addNamespace(cmd.Flags(), &s.namespace)
	a.addFlags(cmd, &output, nil)
	return cmd
}

func (a *querier) listWorkers(ctx context.Context) (*enginev1.ListWorkersResponse, error) {
	return ask(
		ctx,
		a,
		layout.SyncLoop,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*enginev1.ListWorkersResponse, error) {
			return enginev1.NewEngineServiceClient(conn).ListWorkers(ctx, &enginev1.ListWorkersRequest{})
		},
	)
}

func (a *querier) getWorkers(cmd *cobra.Command, output format, s selection) error {
	response, err := a.listWorkers(cmd.Context())
	if err != nil {
		return err
	}
	node := a.nodeFor(cmd.Context(), s)
	name := func(w *enginev1.Worker) podName { return podName{w.GetNamespace(), w.GetName(), node, w.GetPodUid()} }
	var names []podName
	for _, w := range response.GetWorkers() {
		names = append(names, name(w))
	}
	if err := s.meansSome(names); err != nil {
		return err
	}
	chosen := slices.DeleteFunc(response.GetWorkers(), func(w *enginev1.Worker) bool { return !s.has(name(w)) })
	return workerList.show(cmd, output, s, a.clock.Now(), chosen)
}

var workerList = list[*enginev1.Worker]{
	many: "workers of pods", columns: workerColumns, row: workerRow,
	name: func(w *enginev1.Worker) string { return "worker/" + title(w.GetNamespace(), w.GetName()) },
	whole: func(out io.Writer, output format, workers []*enginev1.Worker) error {
		return printMessage(out, output, &enginev1.ListWorkersResponse{Workers: workers})
	},
}

func workerRow(w *enginev1.Worker, now time.Time) []any {
	since := noValue
	if w.GetStateSince() != nil {
		since = age(w.GetStateSince().AsTime(), now)
	}
	return []any{
		title(w.GetNamespace(), w.GetName()), workerName(w.GetState()), since, yesNo(w.GetBusy()), yesNo(w.GetPending()),
		until(w.GetNextSyncAt(), now), until(w.GetTerminateBy(), now), w.GetPodUid(), orNone(oneLine(w.GetWaitsFor())),
		orNone(oneLine(w.GetLastError())),
	}
}

// until returns the time from now, as "in 10s"; "now" if it has passed.
func until(at *timestamppb.Timestamp, now time.Time) string {
	switch {
	case at == nil:
		return noValue
	case !at.AsTime().After(now):
		return "now"
	default:
		return "in " + age(now, at.AsTime())
	}
}
