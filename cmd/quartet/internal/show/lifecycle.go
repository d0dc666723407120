package show

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

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

// fromEvent converts an event.
func fromEvent(e *lifecyclev1.Event) happening {
	h := happening{
		Time: e.GetOccurredAt().
			AsTime(),
		Kind:        kindLifecycle,
		Type:        typeName(e.GetType()),
		Namespace:   e.GetStatus().GetNamespace(),
		Pod:         e.GetStatus().GetName(),
		PodUID:      e.GetPodUid(),
		Container:   e.GetContainerName(),
		ContainerID: e.GetContainerId(),
		Reason:      e.GetReason(),
		TraceID:     traceID(e.GetTraceparent()),
	}
	if e.GetOccurredAt() == nil {
		h.Time = e.GetObservedAt().AsTime()
	}
	if e.GetType() == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED {
		code := e.GetExitCode()
		h.ExitCode, h.Message = &code, exitMessage(code)
	}
	if why := e.GetStatus().GetInspectError(); why != "" && e.GetType() == lifecyclev1.EventType_EVENT_TYPE_POD_SYNC {
		h.Reason, h.Message = statusUnknown, why
	}
	return h
}

func exitMessage(code int32) string { return fmt.Sprintf("exit code %d", code) }

// fromStatus returns the last change of each container of a pod, and whether the pod's state is unknown, derived from
// its status, because there is no history of events.
func fromStatus(status *lifecyclev1.PodStatus) []happening {
	var all []happening
	for _, c := range status.GetContainers() {
		h := happening{
			Kind:        kindLifecycle,
			Namespace:   status.GetNamespace(),
			Pod:         status.GetName(),
			PodUID:      status.GetUid(),
			Container:   c.GetName(),
			ContainerID: c.GetId(),
		}
		switch c.GetState() {
		case lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING:
			h.Type, h.Time = typeStarted, c.GetStartedAt().AsTime()
		case lifecyclev1.ContainerState_CONTAINER_STATE_EXITED:
			code := c.GetExitCode()
			h.Type, h.Time, h.ExitCode, h.Reason, h.Message = typeDied, c.GetFinishedAt().
				AsTime(),
				&code, c.GetReason(), exitMessage(code)
		case lifecyclev1.ContainerState_CONTAINER_STATE_CREATED, lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN,
			lifecyclev1.ContainerState_CONTAINER_STATE_UNSPECIFIED:
			continue
		default:
			continue
		}
		all = append(all, h)
	}
	if why := status.GetInspectError(); why != "" {
		all = append(all, happening{
			Time: status.GetUnknownSince().
				AsTime(),
			Kind:      kindLifecycle,
			Type:      typeSync,
			Namespace: status.GetNamespace(),
			Pod:       status.GetName(),
			PodUID:    status.GetUid(),
			Reason:    statusUnknown,
			Message:   why,
		})
	}
	return all
}

// statusChanges returns the differences between two statuses of a pod.
func statusChanges(old, fresh *lifecyclev1.PodStatus) []happening {
	known := fromStatus(old)
	return slices.DeleteFunc(fromStatus(fresh), func(h happening) bool {
		return slices.ContainsFunc(
			known,
			func(k happening) bool { return k.ContainerID == h.ContainerID && k.Type == h.Type },
		)
	})
}

func (a *querier) listStatuses(ctx context.Context) ([]*lifecyclev1.PodStatus, error) {
	response, err := ask(
		ctx,
		a,
		layout.PLEG,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*lifecyclev1.ListPodStatusesResponse, error) {
			return lifecyclev1.NewLifecycleServiceClient(conn).ListPodStatuses(ctx, &lifecyclev1.ListPodStatusesRequest{})
		},
	)
	return response.GetStatuses(), err
}

// listLifecycle returns the last change of each container that still exists.
func (a *querier) listLifecycle(ctx context.Context) ([]happening, error) {
	statuses, err := a.listStatuses(ctx)
	var all []happening
	for _, status := range statuses {
		all = append(all, fromStatus(status)...)
	}
	return all, err
}

// followLifecycle passes pleg's events to emit until ctx ends. The changes of a snapshot are in the order of time.
func (a *querier) followLifecycle(
	ctx context.Context, cmd *cobra.Command, emit func(...happening), synced func(),
) error {
	var snapshot []happening
	return followPatiently(ctx, a, cmd, layout.PLEG, eventSource, stream.FollowConfig[*lifecyclev1.Event]{
		Handle: func(change stream.Change[*lifecyclev1.Event]) {
			if change.FromSnapshot {
				snapshot = append(snapshot, statusChanges(change.Old.GetStatus(), change.New.GetStatus())...)
				return
			}
			if change.New == nil {
				return
			}
			h := fromEvent(change.New)
			if h.Pod == "" {
				// The last event of a pod may not contain its name.
				h.Namespace, h.Pod = change.Old.GetStatus().GetNamespace(), change.Old.GetStatus().GetName()
			}
			emit(h)
		},
		Synced: func() {
			sortByTime(snapshot)
			emit(snapshot...)
			snapshot = nil
			synced()
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
