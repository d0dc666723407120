package loop

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// messagePatience is how long the status of a pod waits for termination messages. A hung disk delays it by this time,
	// and the messages come later.
	messagePatience = 2 * time.Second
	// maxLater bounds the events of a pod that wait for its messages. Beyond it, the oldest is folded into the next one,
	// which has the newer state.
	maxLater = 16
)

// seenEvent is an event of pleg, and whether it comes from a snapshot.
type seenEvent struct {
	event        *lifecyclev1.Event
	fromSnapshot bool
	// lost is true if a container or the sandbox has ended with this event or with one that was folded into it.
	lost bool
}

// reading is a pod whose termination messages are being read.
type reading struct {
	// events wait for the messages, in order. There are none after messagePatience.
	events []seenEvent
	// late is true after messagePatience.
	late bool
}

func (r *reading) add(e seenEvent) {
	if len(r.events) == maxLater {
		r.events[1].lost = r.events[1].lost || r.events[0].lost
		r.events = r.events[1:]
	}
	r.events = append(r.events, e)
}

// seen handles an event. The event waits for the termination messages of ended containers, and so do the pod's later
// events.
func (l *Loop) seen(e seenEvent) {
	uid := types.UID(e.event.GetPodUid())
	r := l.reading[uid]
	switch {
	case r != nil && !r.late:
		r.add(e)
	case r == nil && l.cfg.Store.HasUnread(uid, e.event.GetStatus()):
		r = &reading{events: []seenEvent{e}}
		l.reading[uid] = r
		l.read(uid, r, e.event.GetStatus())
	default:
		l.handleEvent(e)
	}
}

// read reads the messages, and releases the events of the pod after messagePatience at the latest.
func (l *Loop) read(uid types.UID, r *reading, status *lifecyclev1.PodStatus) {
	done := make(chan struct{})
	l.runIO(eventLifecycle, func(context.Context) func() {
		defer close(done)
		l.cfg.Store.ReadMessages(uid, status)
		return func() {
			delete(l.reading, uid)
			l.goOn(r)
		}
	})
	l.group.Go(func() error {
		timer := l.cfg.Clock.NewTimer(messagePatience)
		defer timer.Stop()
		select {
		case <-done:
		case <-l.ctx.Done():
		case <-timer.C():
			l.post(eventLifecycle, func() {
				if l.reading[uid] != r {
					return // the messages have been read in the meantime
				}
				l.cfg.Logger.Warn("cannot read termination messages in time; the status of the pod is updated without them: look for a hung disk",
					telemetry.KeyPod, status.GetNamespace()+"/"+status.GetName(), telemetry.KeyPodUID, string(uid))
				r.late = true
				l.goOn(r)
			})
		}
		return nil
	})
}

// goOn handles the events that have waited.
func (l *Loop) goOn(r *reading) {
	events := r.events
	r.events = nil
	for _, e := range events {
		l.handleEvent(e)
	}
	l.plegIsSynced()
}

// plegIsSynced records that the snapshot of pleg was handled, as soon as no event of it waits.
func (l *Loop) plegIsSynced() {
	if !l.snapshotEnded {
		return
	}
	for _, r := range l.reading {
		for _, e := range r.events {
			if e.fromSnapshot {
				return
			}
		}
	}
	l.snapshotEnded, l.plegSynced = false, true
	l.progress()
}
