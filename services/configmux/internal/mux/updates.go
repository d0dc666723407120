package mux

import (
	"context"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/stream"
)

// Stream returns the stream that WatchPodUpdates serves in a mode; an unknown mode means incremental.
func (m *Mux) Stream(mode configv1.Mode) stream.Source[Entry] {
	switch mode {
	case configv1.Mode_MODE_SNAPSHOT, configv1.Mode_MODE_SNAPSHOT_AND_UPDATES:
		return snapshots{level: m.level, ready: m.isReady, updates: mode == configv1.Mode_MODE_SNAPSHOT_AND_UPDATES}
	case configv1.Mode_MODE_UNSPECIFIED, configv1.Mode_MODE_INCREMENTAL:
		return updates{level: m.level, ready: m.isReady}
	default:
		return updates{level: m.level, ready: m.isReady}
	}
}

// States returns the stream that WatchPodUpdates serves without operations. A subscriber costs no record of its pods.
func (m *Mux) States() stream.Source[Entry] { return m.level }

// opOfNew returns the operation of a pod for a subscriber that does not have it.
func (e Entry) opOfNew(ready func(source string) bool) configv1.Op {
	if e.restored && !ready(e.Pod.GetSource()) {
		return configv1.Op_OP_RESTORE
	}
	return configv1.Op_OP_ADD
}

// podVersion is a subscriber's version of a pod: the number of the merge, and the life.
type podVersion struct {
	desire uint64
	life   string
}

// podVersion returns the version of a subscriber that has received this entry.
func (e Entry) podVersion() podVersion { return podVersion{desire: e.desire, life: e.Pod.GetLife()} }

// opAfter returns the operation of a pod for a subscriber that has a version of it. A pod in another life was removed
// in between, and is new.
func (e Entry) opAfter(previous podVersion) configv1.Op {
	switch {
	case e.Pod.GetLife() != previous.life:
		return configv1.Op_OP_ADD
	case e.desire == previous.desire:
		return configv1.Op_OP_RECONCILE
	case e.ends:
		return configv1.Op_OP_DELETE
	default:
		return configv1.Op_OP_UPDATE
	}
}

// updates is the incremental mode: the level stream, in which each change has the operation that fits the subscriber's
// version, even if changes were folded.
type updates struct {
	level stream.Source[Entry]
	ready func(source string) bool
}

// Subscribe implements stream.Source.
func (u updates) Subscribe(ctx context.Context, token []byte) (stream.Subscription[Entry], error) {
	sub, err := u.level.Subscribe(ctx, token)
	if err != nil {
		return nil, err
	}
	return &tracked{Subscription: sub, ready: u.ready, known: map[string]podVersion{}}, nil
}

// tracked is one subscription, and the last version of each pod that it has sent. Its memory is proportional to the
// number of pods.
type tracked struct {
	stream.Subscription[Entry]
	ready func(source string) bool
	// resumed is true if the subscriber holds pods of an earlier subscription, which are not in known.
	resumed bool
	known   map[string]podVersion
}

// Next implements stream.Subscription.
func (t *tracked) Next(ctx context.Context) (stream.Message[Entry], error) {
	m, err := t.Subscription.Next(ctx)
	switch {
	case err != nil:
	case m.Kind == stream.KindOpened:
		t.resumed = m.Start == stream.StartResumed
	case m.Value.Pod != nil:
		m.Value.Pod = withOp(m.Value.Pod, t.op(m))
	}
	return m, err
}

// op returns the operation of a change for this subscriber, and records the version.
func (t *tracked) op(m stream.Message[Entry]) configv1.Op {
	if m.Removed {
		delete(t.known, m.Key)
		return configv1.Op_OP_REMOVE
	}
	known, found := t.known[m.Key]
	t.known[m.Key] = m.Value.podVersion()
	switch {
	case found:
		return m.Value.opAfter(known)
	case t.resumed && m.Value.Pod.GetOp() == configv1.Op_OP_RECONCILE:
		// The subscriber may have missed more than the last change.
		return m.Value.opAfter(podVersion{life: m.Value.Pod.GetLife()})
	case t.resumed:
		return m.Value.Pod.GetOp()
	default:
		return m.Value.opOfNew(t.ready)
	}
}
