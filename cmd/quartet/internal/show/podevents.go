package show

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

// podEvent is an event from syncloop or nodestatus about a pod or the node.
type podEvent struct {
	*v1.Event
	received *enginev1.PodEvent
}

func viewEvent(service layout.Service, received *enginev1.PodEvent) (podEvent, error) {
	event := &v1.Event{}
	if err := event.Unmarshal(received.GetEvent()); err != nil {
		return podEvent{}, fmt.Errorf(
			"%s sent an event that cannot be read: %w: do quartet and %s have the same version?",
			service,
			err,
			service,
		)
	}
	event.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	return podEvent{Event: event, received: received}, nil
}

// seen returns the age of the last occurrence, and the number of occurrences if there are several.
func (e podEvent) seen(now time.Time) string {
	seen := age(e.received.GetLastSeenAt().AsTime(), now)
	if e.Count > 1 {
		seen += fmt.Sprintf(" (x%d over %s)", e.Count, age(e.FirstTimestamp.Time, now))
	}
	return seen
}

// container returns the container of an event; empty if the event is about the pod.
func (e podEvent) container() string {
	_, rest, _ := strings.Cut(e.InvolvedObject.FieldPath, "{")
	name, _ := strings.CutSuffix(rest, "}")
	return name
}

// happened converts the event.
func (e podEvent) happened() happening {
	first := e.FirstTimestamp.UTC()
	h := happening{
		Time: e.received.GetLastSeenAt().
			AsTime(),
		Kind:      kindPod,
		Type:      e.Type,
		Reason:    e.Reason,
		Message:   strings.TrimSpace(e.Message),
		Count:     e.Count,
		FirstTime: &first,
		TraceID:   traceID(e.received.GetTraceparent()),
	}
	if e.InvolvedObject.Kind == kindNode {
		h.Kind, h.Node = kindNode, e.InvolvedObject.Name
		return h
	}
	h.Namespace, h.Pod, h.PodUID, h.Container = e.InvolvedObject.Namespace, e.InvolvedObject.Name, string(
		e.InvolvedObject.UID,
	), e.container()
	return h
}

// listPodEvents returns the events of syncloop.
func (a *querier) listPodEvents(ctx context.Context) ([]podEvent, error) {
	return a.listRecorded(ctx, layout.SyncLoop, podEventSource)
}

// openEvents opens the stream of a service's events.
type openEvents func(grpc.ClientConnInterface) stream.Source[*enginev1.PodEvent]

// listRecorded returns the events of a service: its stream up to the end of the snapshot.
func (a *querier) listRecorded(ctx context.Context, service layout.Service, open openEvents) ([]podEvent, error) {
	return ask(ctx, a, service, func(ctx context.Context, conn grpc.ClientConnInterface) ([]podEvent, error) {
		sub, err := open(conn).Subscribe(ctx, nil)
		if err != nil {
			return nil, err
		}
		defer sub.Close()
		var all []podEvent
		for {
			m, err := sub.Next(ctx)
			if err != nil {
				return nil, err
			}
			switch m.Kind {
			case stream.KindSnapshot:
				event, err := viewEvent(service, m.Value)
				if err != nil {
					return nil, err
				}
				all = append(all, event)
			case stream.KindSynced:
				return all, nil
			case stream.KindOpened, stream.KindDelta, stream.KindBookmark, stream.KindUnknown:
			}
		}
	})
}

// followRecorded passes a service's events to emit until ctx ends. The events of a snapshot are in the order of time.
// Dropped events, which are too old or too many, are ignored.
func (a *querier) followRecorded(
	ctx context.Context,
	cmd *cobra.Command,
	service layout.Service,
	open openEvents,
	emit func(...happening),
	synced func(),
) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var snapshot []happening
	return followPatiently(ctx, a, cmd, service, open, stream.FollowConfig[*enginev1.PodEvent]{
		Handle: func(change stream.Change[*enginev1.PodEvent]) {
			if change.Op == stream.OpRemove {
				return
			}
			event, err := viewEvent(service, change.New)
			switch {
			case err != nil:
				fail(err)
			case change.FromSnapshot:
				snapshot = append(snapshot, event.happened())
			default:
				emit(event.happened())
			}
		},
		Equal: func(held, fresh *enginev1.PodEvent) bool { return proto.Equal(held, fresh) },
		Synced: func() {
			sortByTime(snapshot)
			emit(snapshot...)
			snapshot = nil
			synced()
		},
	})
}

func podEventSource(conn grpc.ClientConnInterface) stream.Source[*enginev1.PodEvent] {
	client := enginev1.NewEngineServiceClient(conn)
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*enginev1.PodEvent], error) {
		watch, err := client.WatchPodEvents(ctx, &enginev1.WatchPodEventsRequest{ResumeToken: token})
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *enginev1.PodEvent, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetEvent(), err
		}, nil
	})
}

func nodeEventSource(conn grpc.ClientConnInterface) stream.Source[*enginev1.PodEvent] {
	client := nodev1.NewNodeServiceClient(conn)
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*enginev1.PodEvent], error) {
		watch, err := client.WatchNodeEvents(ctx, &nodev1.WatchNodeEventsRequest{ResumeToken: token})
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *enginev1.PodEvent, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetEvent(), err
		}, nil
	})
}
