package mux

import (
	"cmp"
	"context"
	"maps"
	"slices"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/stream"
)

// SetKey is the key of the sets in the snapshot modes. It differs from every UID of a pod.
const SetKey = "pods"

// snapshots are the two modes that send full sets: SET on each change, or, with updates, SET when pods were added or
// removed or a source has become ready, and UPDATE and DELETE otherwise.
type snapshots struct {
	level   stream.Source[Entry]
	ready   func(source string) bool
	updates bool
}

// Subscribe implements stream.Source. It never resumes, because the last set is complete.
func (s snapshots) Subscribe(ctx context.Context, token []byte) (stream.Subscription[Entry], error) {
	sub, opened, err := s.open(ctx, token)
	if err == nil && opened.Start == stream.StartResumed {
		sub.Close()
		sub, opened, err = s.open(ctx, nil)
		opened.Start = stream.StartSnapshotCompacted
	}
	if err != nil {
		return nil, err
	}
	return &collector{
		Subscription: sub, ready: s.ready, updates: s.updates, out: []stream.Message[Entry]{opened},
		pods: map[string]Entry{}, sources: map[string]bool{}, pending: map[string]map[string]stream.Message[Entry]{},
	}, nil
}

// open begins a subscription and receives its first message.
func (s snapshots) open(ctx context.Context, token []byte) (stream.Subscription[Entry], stream.Message[Entry], error) {
	sub, err := s.level.Subscribe(ctx, token)
	if err != nil {
		return nil, stream.Message[Entry]{}, err
	}
	opened, err := sub.Next(ctx)
	if err != nil {
		sub.Close()
		return nil, stream.Message[Entry]{}, err
	}
	return sub, opened, nil
}

// collector is one subscription. It holds back the changes of a merge until the message of their source, which ends the
// merge, so that no set contains half of a merge. Its memory is proportional to the number of pods.
type collector struct {
	stream.Subscription[Entry]
	ready   func(source string) bool
	updates bool

	// pods and sources are the state of the subscriber, except that a status change alone is not sent.
	pods    map[string]Entry
	sources map[string]bool
	// pending maps each source to the last change of each pod, until the source's merge is complete.
	pending map[string]map[string]stream.Message[Entry]
	out     []stream.Message[Entry]
}

// Next implements stream.Subscription.
func (c *collector) Next(ctx context.Context) (stream.Message[Entry], error) {
	for len(c.out) == 0 {
		m, err := c.Subscription.Next(ctx)
		if err != nil {
			return m, err
		}
		c.take(m)
	}
	next := c.out[0]
	c.out = c.out[1:]
	return next, nil
}

// take processes a message, and queues the resulting messages.
func (c *collector) take(m stream.Message[Entry]) {
	state, pod := m.Value.Source, m.Value.Pod
	switch {
	case m.Kind == stream.KindSnapshot && state != nil:
		c.sources[state.GetName()] = state.GetReady()
	case m.Kind == stream.KindSnapshot:
		c.pods[m.Key] = m.Value
	case m.Kind == stream.KindSynced:
		c.out = append(c.out, stream.Message[Entry]{Kind: stream.KindSnapshot, Key: SetKey, Value: c.set("")}, m)
	case m.Kind == stream.KindDelta && state != nil:
		c.merged(state, m.Token)
	case m.Kind == stream.KindDelta:
		changes := c.pending[pod.GetSource()]
		if changes == nil {
			changes = map[string]stream.Message[Entry]{}
			c.pending[pod.GetSource()] = changes
		}
		changes[m.Key] = m
	default:
		c.out = append(c.out, m)
	}
}

// merged processes a complete merge of a source.
func (c *collector) merged(state *configv1.SourceState, token []byte) {
	name := state.GetName()
	changes := c.pending[name]
	delete(c.pending, name)
	whole := state.GetReady() && !c.sources[name]
	c.sources[name] = state.GetReady()
	var single []stream.Message[Entry]
	for key, m := range changes {
		before, existed := c.pods[key]
		if m.Removed {
			delete(c.pods, key)
			whole = whole || existed
			continue
		}
		c.pods[key] = m.Value
		if !existed {
			whole = true
			continue
		}
		op := m.Value.opAfter(before.podVersion())
		if op == configv1.Op_OP_RECONCILE {
			continue
		}
		if op == configv1.Op_OP_ADD { // it was removed in between
			whole = true
			continue
		}
		m.Value.Pod = withOp(m.Value.Pod, op)
		single = append(single, m)
	}
	if whole || (!c.updates && len(single) > 0) {
		c.out = append(c.out, stream.Message[Entry]{Kind: stream.KindDelta, Key: SetKey, Value: c.set(name), Token: token})
	}
	if !c.updates {
		return
	}
	slices.SortFunc(single, func(a, b stream.Message[Entry]) int {
		p, q := a.Value, b.Value
		return cmp.Or(
			cmp.Compare(p.Pod.GetOp(), q.Pod.GetOp()),
			cmp.Compare(p.name.Namespace, q.name.Namespace),
			cmp.Compare(p.name.Name, q.name.Name),
		)
	})
	for _, m := range single {
		m.Token = token
		c.out = append(c.out, m)
	}
}

// set returns the full set for the subscriber.
func (c *collector) set(source string) Entry {
	out := &configv1.PodSet{Source: source, Pods: listed(slices.Collect(maps.Values(c.pods)), c.ready)}
	for _, name := range slices.Sorted(maps.Keys(c.sources)) {
		out.Sources = append(out.Sources, &configv1.SourceState{Name: name, Ready: c.sources[name]})
	}
	return Entry{Set: out}
}
