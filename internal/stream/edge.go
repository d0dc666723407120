package stream

import (
	"cmp"
	"slices"
)

// Edge publishes events, and keeps beside them a keyed state from which new subscribers begin. Events are kept in a ring
// that all subscribers share: one that falls behind the ring ends with ErrOverflow, and no event is ever folded or
// dropped without a word.
type Edge[V any] struct {
	hub[V]
	state map[string]item[V]
	// ring holds the last events; the event of revision r stands at index r modulo its length.
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

// Emit publishes an event of key, and makes state what a new subscriber gets for that key.
func (e *Edge[V]) Emit(key string, event, state V) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.append(item[V]{key: key, value: event})
	e.state[key] = item[V]{rev: e.rev, key: key, value: state}
}

// EmitLast publishes the last event of key, with Removed set, and takes the key out of the state.
func (e *Edge[V]) EmitLast(key string, event V) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.append(item[V]{key: key, value: event, removed: true})
	delete(e.state, key)
}

// Doubt says whether there is something that has happened, which followers may have been told by a run before this one, and which
// this one does not know yet and is to tell. Who comes with a token of an earlier run then that Config.Continues does not have may
// know more than this run began with, or less; see Withhold.
func (e *Edge[V]) Doubt(doubt bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.doubt = doubt
	e.wake() // for who is in no doubt any more, see take
}

// Withhold keeps the next n events from the followers that may have been told them, see Doubt: their subscriptions end with
// ErrOverflow, and they begin anew with a snapshot that has what these events say. All others get them.
func (e *Edge[V]) Withhold(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.floor = e.rev + uint64(n) //nolint:gosec // a length
}

// Put makes state what a new subscriber gets for key, without an event: for what was there before anybody could subscribe.
// Who is subscribed, or resumes, is not told.
func (e *Edge[V]) Put(key string, state V) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state[key] = item[V]{rev: e.rev, key: key, value: state}
}

// Token returns what a subscriber holds that has been sent every event so far: Config.Continues of a later run, if that
// knows what this one has told by now.
func (e *Edge[V]) Token() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return tokenOf(e.epoch, e.rev)
}

// Replace changes what a new subscriber gets for key, without an event. A key that is not in the state stays out of it.
func (e *Edge[V]) Replace(key string, state V) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if old, ok := e.state[key]; ok {
		old.value = state
		e.state[key] = old
	}
}

func (e *Edge[V]) append(it item[V]) {
	e.rev++
	it.rev = e.rev
	e.ring[it.rev%uint64(len(e.ring))] = it
	e.wake()
}

// edgeHistory is the view that subscriptions have of an Edge.
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

func (e *edgeHistory[V]) behind(cursor uint64) int { return int(e.rev - cursor) } //nolint:gosec // no process lives for 2^63 events
