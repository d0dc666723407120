package stream

import (
	"cmp"
	"slices"
)

// Edge publishes events, and beside them a keyed state as the snapshot for new subscribers. All subscribers share a
// ring of the last events. A subscriber that falls behind the ring ends with ErrOverflow; events are never folded or
// silently dropped.
type Edge[V any] struct {
	hub[V]
	state map[string]item[V]
	// ring holds the last events. The event of revision r is at index r modulo the length.
	ring []item[V]
}

// NewEdge returns a publisher with an empty state and no events.
func NewEdge[V any](cfg Config) *Edge[V] {
	size := cfg.LogSize
	if size == 0 {
		size = DefaultLogSize
	}
	e := &Edge[V]{state: map[string]item[V]{}, ring: make([]item[V], size)}
	e.init(cfg, (*edgeHistory[V])(e))
	return e
}

// Emit publishes an event of key, and sets the state of that key for new subscribers.
func (e *Edge[V]) Emit(key string, event, state V) { e.EmitAll(key, []V{event}, state) }

// EmitAll publishes the events of key that led to a state, and sets the state of that key for new subscribers. None
// begins between two of these events, because the state would tell it of the later ones, too.
func (e *Edge[V]) EmitAll(key string, events []V, state V) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range events {
		e.append(item[V]{key: key, value: event})
	}
	e.state[key] = item[V]{rev: e.rev, key: key, value: state}
}

// EmitLast publishes the last events of key, the very last with Removed set, and removes the key from the state.
func (e *Edge[V]) EmitLast(key string, events ...V) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, event := range events {
		e.append(item[V]{key: key, value: event, removed: i == len(events)-1})
	}
	delete(e.state, key)
}

// Doubt declares whether this run has yet to publish events that an earlier run may already have published. While it is
// set, a subscriber with a token of an earlier run that is not in Config.Continues may be ahead of or behind the state
// that this run began with; see Withhold.
func (e *Edge[V]) Doubt(doubt bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.doubt = doubt
	e.wake() // for subscriptions that are not in doubt any more, see take
}

// Withhold withholds the next n events from the followers that may have received them from an earlier run, see Doubt.
// Their subscriptions end with ErrOverflow, and they start again from a snapshot that includes these events. All other
// subscribers receive them.
func (e *Edge[V]) Withhold(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.floor = e.rev + uint64(n) //nolint:gosec // a length
}

// Put sets the state of key for new subscribers without an event, for things that existed before the first
// subscription. Present subscribers, and those that resume, are not notified.
func (e *Edge[V]) Put(key string, state V) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state[key] = item[V]{rev: e.rev, key: key, value: state}
}

// Token returns the token of a subscriber that knows everything so far. A later run can use it in Config.Continues if
// it knows what this run has published.
func (e *Edge[V]) Token() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return tokenOf(e.epoch, e.rev, e.silent)
}

// Moved declares that the state has changed since the last event in a way that a later run has to know, by Put or
// Replace. The tokens of the snapshots that show it differ from the tokens before it: a later run that has kept an
// older token in Config.Continues does not resume their holders, because they may hold what it does not know.
func (e *Edge[V]) Moved() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.silent++
}

// Replace changes the state of key for new subscribers without an event. It does not add a key.
func (e *Edge[V]) Replace(key string, state V) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if old, ok := e.state[key]; ok {
		old.value = state
		e.state[key] = old
	}
}

func (e *Edge[V]) append(it item[V]) {
	e.rev, e.silent = e.rev+1, 0
	it.rev = e.rev
	e.ring[it.rev%uint64(len(e.ring))] = it
	e.wake()
}

// edgeHistory is the interface of an Edge to its subscriptions.
type edgeHistory[V any] Edge[V]

func (e *edgeHistory[V]) snapshot() []item[V] {
	items := make([]item[V], 0, len(e.state))
	for _, it := range e.state {
		items = append(items, it)
	}
	slices.SortFunc(items, func(a, b item[V]) int { return cmp.Or(cmp.Compare(a.rev, b.rev), cmp.Compare(a.key, b.key)) })
	return items
}

func (e *edgeHistory[V]) next(cursor uint64) (item[V], bool) {
	if cursor >= e.rev {
		return item[V]{}, false
	}
	return e.ring[(cursor+1)%uint64(len(e.ring))], true
}

func (e *edgeHistory[V]) reaches(cursor uint64) bool { return e.rev-cursor <= uint64(len(e.ring)) }

func (e *edgeHistory[V]) behind(cursor uint64) int {
	return int(e.rev - cursor) //nolint:gosec // no process lives for 2^63 events
}
