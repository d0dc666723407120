package loop

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// lifecycleEvent is a message of pleg's stream: a change, the end of the snapshot, or the loss of the connection.
type lifecycleEvent struct {
	change stream.Change[*lifecyclev1.Event]
	synced bool
	// down is why the stream is disconnected; empty if it is not.
	down string
}

func (l *Loop) followPleg(ctx context.Context) error {
	send := func(e lifecycleEvent) {
		select {
		case l.lifecycle <- e:
		case <-ctx.Done():
		}
	}
	return stream.Follow(ctx, stream.FollowConfig[*lifecyclev1.Event]{
		Name: "pleg", Source: l.cfg.Events, Clock: l.cfg.Clock, Logger: l.cfg.Logger, Equal: sameObservation,
		Metrics: l.cfg.EventsMetrics,
		Handle:  func(c stream.Change[*lifecyclev1.Event]) { send(lifecycleEvent{change: c}) },
		Synced:  func() { send(lifecycleEvent{synced: true}) },
		Connected: func(up bool, cause error) {
			if !up && cause != nil {
				send(lifecycleEvent{down: cause.Error()})
			}
		},
	})
}

func sameObservation(held, fresh *lifecyclev1.Event) bool {
	return podview.SameContent(held.GetStatus(), fresh.GetStatus())
}

func (l *Loop) handleLifecycle(e lifecycleEvent) {
	switch {
	case e.down != "":
		l.snapshotEnded, l.plegSynced = false, false
		l.progress()
	case e.synced:
		l.snapshotEnded = true
		l.plegIsSynced()
	case e.change.Op == stream.OpRemove && e.change.New == nil:
		uid := types.UID(e.change.Key)
		l.cfg.Store.Gone(uid)
		l.poke(uid, podworkers.Cause{Kind: podworkers.CauseLost})
	case e.change.Op == stream.OpRemove:
		l.cfg.Store.Event(e.change.New)
		l.poke(types.UID(e.change.Key), podworkers.Cause{
			Kind: podworkers.CauseLost, Traceparent: e.change.New.GetTraceparent(),
		})
	default:
		l.seen(seenEvent{event: e.change.New, fromSnapshot: e.change.FromSnapshot, lost: isLost(e.change.New)})
	}
}

// isLost reports whether a container or the sandbox has ended with an event.
func isLost(event *lifecyclev1.Event) bool {
	switch event.GetType() {
	case lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED:
		return true
	case lifecyclev1.EventType_EVENT_TYPE_POD_SYNC:
		s := event.GetStatus().GetSandboxes()
		return len(s) > 0 && s[0].GetState() != lifecyclev1.SandboxState_SANDBOX_STATE_READY
	case lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED, lifecyclev1.EventType_EVENT_TYPE_UNSPECIFIED,
		lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED:
	}
	return false
}

// handleEvent records an event, and wakes the pod's worker if the event may concern it. An event of a snapshot happened
// long ago and continues no trace.
func (l *Loop) handleEvent(e seenEvent) {
	l.cfg.Store.Event(e.event)
	kind := e.event.GetType()
	if !e.lost &&
		(kind == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED || kind == lifecyclev1.EventType_EVENT_TYPE_UNSPECIFIED) {
		return
	}
	cause := podworkers.Cause{Kind: podworkers.CauseSeen, Traceparent: e.event.GetTraceparent()}
	if e.fromSnapshot {
		cause.Traceparent = ""
	}
	if e.lost {
		cause.Kind = podworkers.CauseLost
	}
	l.poke(types.UID(e.event.GetPodUid()), cause)
}
