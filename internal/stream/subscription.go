package stream

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"k8s.io/utils/clock"
)

// item is one change at its position in the order of all changes of a publisher.
type item[V any] struct {
	rev     uint64
	key     string
	removed bool
	value   V
}

// history is the interface of a publisher's memory to its subscriptions. Its methods are called with the hub's lock
// held.
type history[V any] interface {
	// snapshot returns the present state in the order of its changes.
	snapshot() []item[V]
	// next returns the oldest change after the revision cursor; ok is false if there is none.
	next(cursor uint64) (change item[V], ok bool)
	// reaches reports whether every change after the revision cursor is still known.
	reaches(cursor uint64) bool
	// behind returns the number of messages after the revision cursor.
	behind(cursor uint64) int
}

// hub is the common part of Level and Edge: the epoch, the revision, the waiting subscriptions, and their protocol. A
// subscriber costs its cursor, plus the snapshot while that is being sent.
type hub[V any] struct {
	epoch string
	// continues lists the tokens of earlier runs that correspond to revision 0 of this one.
	continues [][]byte
	clock     clock.WithTicker
	history   history[V]
	metrics   *ServedMetrics

	mu  sync.Mutex
	rev uint64
	// silent counts the calls of Edge.Moved since the last event; always 0 on a Level.
	silent  uint64
	waiting map[*subscription[V]]struct{}
	closed  bool
	// doubt is the value of Edge.Doubt, and floor the revision of the last event that Edge.Withhold covers.
	doubt bool
	floor uint64
}

// unsureMark ends the epoch in a token whose holder may have received later events from an earlier run. The next run
// does not resume it.
const unsureMark = "?"

func (h *hub[V]) init(cfg Config, past history[V]) {
	h.epoch, h.clock, h.history, h.waiting = cfg.Epoch, cfg.Clock, past, map[*subscription[V]]struct{}{}
	h.metrics, h.continues = cfg.Metrics, cfg.Continues
	if h.epoch == "" {
		h.epoch = uuid.NewString()
	}
	if h.clock == nil {
		h.clock = clock.RealClock{}
	}
	if h.metrics == nil {
		h.metrics = newServedMetrics("")
	}
	h.metrics.publishes(h)
}

// look returns the state of the subscribers for the metrics.
func (h *hub[V]) look() servedState {
	h.mu.Lock()
	defer h.mu.Unlock()
	state := servedState{subscribers: len(h.waiting), published: h.rev}
	for s := range h.waiting {
		state.behind = max(state.behind, h.history.behind(s.cursor)+int(s.unsent.Load()))
		if !s.behindSince.IsZero() {
			state.behindFor = max(state.behindFor, h.clock.Since(s.behindSince))
		}
	}
	return state
}

// wake signals every subscription that something has changed. The caller holds mu.
func (h *hub[V]) wake() {
	if len(h.waiting) == 0 {
		return
	}
	now := h.clock.Now()
	for s := range h.waiting {
		if s.behindSince.IsZero() {
			s.behindSince = now
		}
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// Close ends every subscription with ErrClosed, and refuses new ones.
func (h *hub[V]) Close() {
	h.mu.Lock()
	h.closed = true
	h.wake()
	h.mu.Unlock()
	h.metrics.ended(h)
}

// Subscribers returns how many subscriptions are open.
func (h *hub[V]) Subscribers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting)
}

// Subscribe implements Source.
func (h *hub[V]) Subscribe(ctx context.Context, token []byte) (Subscription[V], error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	s := &subscription[V]{hub: h, changed: make(chan struct{}, 1), behindSince: h.clock.Now(), end: endLeft}
	var from place
	s.start, from, s.unsure = h.startFrom(token)
	s.cursor, s.silent = from.rev, from.silent
	if s.start != StartResumed {
		s.cursor, s.silent = h.rev, h.silent
		s.pending = h.history.snapshot()
		s.unsent.Store(int64(len(s.pending)))
	}
	h.waiting[s] = struct{}{}
	h.metrics.subscriptions[s.start].Inc()
	return s, nil
}

// startFrom returns where a subscription with this token begins, and whether its holder may have received events that
// are still to be published. The caller holds mu.
func (h *hub[V]) startFrom(text []byte) (start Start, from place, unsure bool) {
	if len(text) == 0 {
		return StartSnapshot, place{}, false
	}
	t, ok := parse(text)
	if ok && slices.ContainsFunc(h.continues, func(known []byte) bool { return t.isIn(known) }) {
		t = token{epoch: h.epoch}
	}
	epoch, marked := strings.CutSuffix(t.epoch, unsureMark)
	switch {
	case !ok:
		return StartSnapshotInvalid, place{}, false
	case epoch != h.epoch:
		return StartSnapshotEpoch, place{}, h.doubt
	case t.rev > h.rev:
		return StartSnapshotInvalid, place{}, false
	case !h.history.reaches(t.rev), marked && t.rev < h.floor:
		return StartSnapshotCompacted, place{}, marked && h.doubt
	default:
		return StartResumed, t.place, marked && h.doubt
	}
}

// subscription proceeds from OPENED over the snapshot to the deltas; phase is its present stage.
type subscription[V any] struct {
	hub    *hub[V]
	start  Start
	cursor uint64
	// silent is hub.silent at the snapshot; 0 after the first change that follows it.
	silent  uint64
	pending []item[V]
	phase   phase
	// changed has room for one signal: the subscription handles everything that is new when it wakes.
	changed chan struct{}
	// unsure is true for a follower that may have received events that are still to be published, see Edge.Doubt.
	unsure bool
	// unsent is the length of pending, for readers in other goroutines.
	unsent atomic.Int64
	// behindSince is when the subscription was last up to date; zero while it is. end is the reason recorded when it is
	// closed. The hub's lock guards both.
	behindSince time.Time
	end         ending
}

type phase int

const (
	phaseOpening phase = iota
	phaseSnapshot
	phaseDeltas
)

// Close implements Subscription.
func (s *subscription[V]) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if _, open := s.hub.waiting[s]; open {
		delete(s.hub.waiting, s)
		s.hub.metrics.ends[s.end].Inc()
	}
	s.pending = nil
}

// Next implements Subscription.
func (s *subscription[V]) Next(ctx context.Context) (Message[V], error) {
	m, err := s.next(ctx)
	if err == nil {
		s.hub.metrics.sent[m.Kind].Inc()
	}
	return m, err
}

func (s *subscription[V]) next(ctx context.Context) (Message[V], error) {
	if err := ctx.Err(); err != nil {
		return Message[V]{}, err
	}
	switch s.phase {
	case phaseOpening:
		s.phase = phaseSnapshot
		m := Message[V]{Kind: KindOpened, Start: s.start}
		if s.start == StartResumed {
			s.phase = phaseDeltas
			m.Token = s.token()
		}
		return m, nil
	case phaseSnapshot:
		if len(s.pending) > 0 {
			it := s.pending[0]
			s.pending[0] = item[V]{}
			s.pending = s.pending[1:]
			s.unsent.Store(int64(len(s.pending)))
			return Message[V]{Kind: KindSnapshot, Key: it.key, Value: it.value}, nil
		}
		s.phase, s.pending = phaseDeltas, nil
		return Message[V]{Kind: KindSynced, Token: s.token()}, nil
	case phaseDeltas:
	}
	return s.nextDelta(ctx)
}

func (s *subscription[V]) nextDelta(ctx context.Context) (Message[V], error) {
	it, ok, err := s.take()
	if ok || err != nil {
		return s.delta(it), err
	}
	idle := s.hub.clock.NewTimer(BookmarkInterval)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return Message[V]{}, ctx.Err()
		case <-idle.C():
			return Message[V]{Kind: KindBookmark, Token: s.token()}, nil
		case <-s.changed:
			it, ok, err := s.take()
			if ok || err != nil {
				return s.delta(it), err
			}
		}
	}
}

// take returns the next change, if there is one, and moves the cursor past it.
func (s *subscription[V]) take() (item[V], bool, error) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.hub.closed {
		s.end = endClosed
		return item[V]{}, false, ErrClosed
	}
	if !s.hub.history.reaches(s.cursor) || s.unsure && s.cursor < s.hub.floor {
		if s.end != endOverflow {
			s.hub.metrics.skipped.Add(s.hub.rev - s.cursor)
		}
		s.end = endOverflow
		return item[V]{}, false, ErrOverflow
	}
	s.unsure = s.unsure && s.hub.doubt
	it, ok := s.hub.history.next(s.cursor)
	if ok {
		s.cursor, s.silent = it.rev, 0
	} else {
		s.behindSince = time.Time{}
	}
	return it, ok, nil
}

func (s *subscription[V]) delta(it item[V]) Message[V] {
	return Message[V]{Kind: KindDelta, Token: s.token(), Key: it.key, Removed: it.removed, Value: it.value}
}

func (s *subscription[V]) token() []byte {
	epoch := s.hub.epoch
	if s.unsure {
		epoch += unsureMark
	}
	return tokenOf(epoch, s.cursor, s.silent)
}
