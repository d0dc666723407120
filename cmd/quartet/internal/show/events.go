package show

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

// happening is one thing that has happened to a pod in the runtime.
type happening struct {
	Time        time.Time `json:"time"`
	Type        string    `json:"type"`
	Namespace   string    `json:"namespace"`
	Pod         string    `json:"pod"`
	PodUID      string    `json:"podUID"`
	Container   string    `json:"container,omitempty"`
	ContainerID string    `json:"containerID,omitempty"`
	ExitCode    *int32    `json:"exitCode,omitempty"`
	Reason      string    `json:"reason,omitempty"`
}

// The types, by the kubelet's names.
const (
	typeStarted = "ContainerStarted"
	typeDied    = "ContainerDied"
	typeRemoved = "ContainerRemoved"
	typeSync    = "PodSync"
)

// typeName names the type of an event.
func typeName(t lifecyclev1.EventType) string {
	switch t {
	case lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED:
		return typeStarted
	case lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED:
		return typeDied
	case lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED:
		return typeRemoved
	case lifecyclev1.EventType_EVENT_TYPE_POD_SYNC:
		return typeSync
	case lifecyclev1.EventType_EVENT_TYPE_UNSPECIFIED:
		return unknown
	default:
		return t.String()
	}
}

// fromEvent is an event as it came.
func fromEvent(e *lifecyclev1.Event) happening {
	h := happening{
		Time: e.GetOccurredAt().AsTime(), Type: typeName(e.GetType()), Namespace: e.GetStatus().GetNamespace(), Pod: e.GetStatus().GetName(),
		PodUID: e.GetPodUid(), Container: e.GetContainerName(), ContainerID: e.GetContainerId(), Reason: e.GetReason(),
	}
	if e.GetOccurredAt() == nil {
		h.Time = e.GetObservedAt().AsTime()
	}
	if e.GetType() == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED {
		code := e.GetExitCode()
		h.ExitCode = &code
	}
	return h
}

// fromStatus is what must have happened last to each container of a pod for it to be as it was observed. There is no
// history of events; this is what can be known of the time before one looks.
func fromStatus(status *lifecyclev1.PodStatus) []happening {
	var all []happening
	for _, c := range status.GetContainers() {
		h := happening{
			Namespace: status.GetNamespace(), Pod: status.GetName(), PodUID: status.GetUid(), Container: c.GetName(), ContainerID: c.GetId(),
		}
		switch c.GetState() {
		case lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING:
			h.Type, h.Time = typeStarted, c.GetStartedAt().AsTime()
		case lifecyclev1.ContainerState_CONTAINER_STATE_EXITED:
			code := c.GetExitCode()
			h.Type, h.Time, h.ExitCode, h.Reason = typeDied, c.GetFinishedAt().AsTime(), &code, c.GetReason()
		case lifecyclev1.ContainerState_CONTAINER_STATE_CREATED, lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN,
			lifecyclev1.ContainerState_CONTAINER_STATE_UNSPECIFIED:
			continue
		default:
			continue
		}
		all = append(all, h)
	}
	return all
}

func sortByTime(all []happening) {
	slices.SortStableFunc(all, func(x, y happening) int { return x.Time.Compare(y.Time) })
}

// since is what a pod's new status says that its old one did not.
func since(old, fresh *lifecyclev1.PodStatus) []happening {
	known := fromStatus(old)
	return slices.DeleteFunc(fromStatus(fresh), func(h happening) bool {
		return slices.ContainsFunc(known, func(k happening) bool { return k.ContainerID == h.ContainerID && k.Type == h.Type })
	})
}

func (a *asker) eventsCommand() *cobra.Command {
	var watch bool
	var output eventFormat
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happens to pods in the container runtime",
		Long: "Show what happens to pods in the container runtime: containers that start and die, with exit code and reason.\n\n" +
			"No history is kept: without -w, and first with it, this shows the last that happened to each container that is\n" +
			"still there. With -w it goes on with every event.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p := newEventPrinter(cmd.OutOrStdout(), output)
			if watch {
				return a.watchEvents(cmd, p)
			}
			return a.listEvents(cmd, p)
		},
	}
	a.addFlags(cmd, nil, &watch)
	cmd.Flags().VarP(&output, "output", "o", "`FORMAT` of the output: json, one object a line")
	return cmd
}

// eventFormat is a format of events: a table or JSON.
type eventFormat struct{ format }

// Set implements pflag.Value.
func (f *eventFormat) Set(text string) error {
	if text != string(formatJSON) {
		return errors.New("must be json")
	}
	return f.format.Set(text)
}

type eventPrinter struct {
	out   io.Writer
	json  bool
	table *table
}

func newEventPrinter(out io.Writer, output eventFormat) *eventPrinter {
	return &eventPrinter{out: out, json: output.format == formatJSON, table: newTable(out, formatTable, []column{
		{name: "Time"}, {name: "Type", watched: len(typeStarted)}, {name: "Pod"}, {name: "Container"}, {name: "Exit code"}, {name: "Reason"},
	}, true)}
}

func (p *eventPrinter) print(all ...happening) error {
	if p.json {
		encoder := json.NewEncoder(p.out)
		for _, h := range all {
			if err := encoder.Encode(h); err != nil {
				return err
			}
		}
		return nil
	}
	var rows [][]any
	for _, h := range all {
		code := ""
		if h.ExitCode != nil {
			code = fmt.Sprint(*h.ExitCode)
		}
		rows = append(rows, []any{h.Time.Local().Format("15:04:05.000"), h.Type, title(h.Namespace, h.Pod), h.Container, code, oneLine(h.Reason)})
	}
	if len(rows) == 0 {
		return nil
	}
	return p.table.print(rows...)
}

func (a *asker) listStatuses(ctx context.Context) ([]*lifecyclev1.PodStatus, error) {
	response, err := ask(ctx, a, layout.PLEG, func(ctx context.Context, conn grpc.ClientConnInterface) (*lifecyclev1.ListPodStatusesResponse, error) {
		return lifecyclev1.NewLifecycleServiceClient(conn).ListPodStatuses(ctx, &lifecyclev1.ListPodStatusesRequest{})
	})
	return response.GetStatuses(), err
}

func (a *asker) listEvents(cmd *cobra.Command, p *eventPrinter) error {
	statuses, err := a.listStatuses(cmd.Context())
	if err != nil {
		return err
	}
	var all []happening
	for _, status := range statuses {
		all = append(all, fromStatus(status)...)
	}
	sortByTime(all)
	return p.print(all...)
}

func (a *asker) watchEvents(cmd *cobra.Command, p *eventPrinter) error {
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	// What a snapshot says is collected, so that it can be told in the order in which it happened.
	var snapshot []happening
	return follow(ctx, a, cmd, layout.PLEG, eventSource, stream.FollowConfig[*lifecyclev1.Event]{
		Handle: func(change stream.Change[*lifecyclev1.Event]) {
			if change.FromSnapshot {
				snapshot = append(snapshot, since(change.Old.GetStatus(), change.New.GetStatus())...)
				return
			}
			if change.New == nil {
				return
			}
			h := fromEvent(change.New)
			if h.Pod == "" {
				// The last event of a pod may have nothing left to name it by.
				h.Namespace, h.Pod = change.Old.GetStatus().GetNamespace(), change.Old.GetStatus().GetName()
			}
			if err := p.print(h); err != nil {
				fail(err)
			}
		},
		Synced: func() {
			sortByTime(snapshot)
			if err := p.print(snapshot...); err != nil {
				fail(err)
			}
			snapshot = nil
		},
	})
}

func eventSource(conn grpc.ClientConnInterface) stream.Source[*lifecyclev1.Event] {
	client := lifecyclev1.NewLifecycleServiceClient(conn)
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*lifecyclev1.Event], error) {
		watch, err := client.WatchEvents(ctx, &lifecyclev1.WatchEventsRequest{ResumeToken: token})
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *lifecyclev1.Event, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetEvent(), err
		}, nil
	})
}
