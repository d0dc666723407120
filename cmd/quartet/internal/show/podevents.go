package show

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

// podEvent is an event of a pod, or of the node, as syncloop tells it.
type podEvent struct {
	*v1.Event
	told *enginev1.PodEvent
}

func viewEvent(told *enginev1.PodEvent) (podEvent, error) {
	event := &v1.Event{}
	if err := event.Unmarshal(told.GetEvent()); err != nil {
		return podEvent{}, fmt.Errorf("syncloop sent an event that cannot be read: %w: do quartet and syncloop have the same version?", err)
	}
	event.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	return podEvent{Event: event, told: told}, nil
}

// container is the one that an event is about; empty when it is about the pod.
func (e podEvent) container() string {
	_, rest, _ := strings.Cut(e.InvolvedObject.FieldPath, "{")
	name, _ := strings.CutSuffix(rest, "}")
	return name
}

// happened is the event among what else has happened.
func (e podEvent) happened() happening {
	first := e.FirstTimestamp.UTC()
	h := happening{
		Time: e.told.GetLastSeenAt().AsTime(), Kind: kindPod, Type: e.Type, Reason: e.Reason, Message: strings.TrimSpace(e.Message),
		Count: e.Count, FirstTime: &first, TraceID: traceID(e.told.GetTraceparent()),
	}
	if e.InvolvedObject.Kind == kindNode {
		h.Kind, h.Node = kindNode, e.InvolvedObject.Name
		return h
	}
	h.Namespace, h.Pod, h.PodUID, h.Container = e.InvolvedObject.Namespace, e.InvolvedObject.Name, string(e.InvolvedObject.UID), e.container()
	return h
}

// listPodEvents returns the events that syncloop has: its stream up to the end of the snapshot.
func (a *asker) listPodEvents(ctx context.Context) ([]podEvent, error) {
	return ask(ctx, a, layout.SyncLoop, func(ctx context.Context, conn grpc.ClientConnInterface) ([]podEvent, error) {
		watch, err := enginev1.NewEngineServiceClient(conn).WatchPodEvents(ctx, &enginev1.WatchPodEventsRequest{})
		if err != nil {
			return nil, err
		}
		var all []podEvent
		for {
			m, err := watch.Recv()
			if err != nil {
				return nil, err
			}
			switch m.GetFrame().GetKind() {
			case streamv1.Kind_KIND_SNAPSHOT:
				event, err := viewEvent(m.GetEvent())
				if err != nil {
					return nil, err
				}
				all = append(all, event)
			case streamv1.Kind_KIND_SYNCED:
				return all, nil
			case streamv1.Kind_KIND_UNSPECIFIED, streamv1.Kind_KIND_OPENED, streamv1.Kind_KIND_DELTA, streamv1.Kind_KIND_BOOKMARK:
			}
		}
	})
}

// followPodEvents tells what syncloop tells of its pods and the node until ctx ends. What a snapshot says is told in the order in which it
// happened; that an event was dropped is nothing that happened to its pod.
func (a *asker) followPodEvents(ctx context.Context, cmd *cobra.Command, tell func(...happening), synced func()) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var snapshot []happening
	return follow(ctx, a, cmd, layout.SyncLoop, podEventSource, stream.FollowConfig[*enginev1.PodEvent]{
		Handle: func(change stream.Change[*enginev1.PodEvent]) {
			if change.Op == stream.OpRemove {
				return
			}
			event, err := viewEvent(change.New)
			switch {
			case err != nil:
				fail(err)
			case change.FromSnapshot:
				snapshot = append(snapshot, event.happened())
			default:
				tell(event.happened())
			}
		},
		Equal: func(held, fresh *enginev1.PodEvent) bool { return proto.Equal(held, fresh) },
		Synced: func() {
			sortByTime(snapshot)
			tell(snapshot...)
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
