package stream

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

// Op says what has become of a key.
type Op int

// The changes that a follower sees, the same whether they come one by one or out of a fresh snapshot.
const (
	OpAdd Op = iota + 1
	OpUpdate
	OpRemove
)

// Change is one change as a follower sees it.
type Change[V any] struct {
	Op  Op
	Key string
	// Old is the value that the follower held, zero on OpAdd.
	Old V
	// New is the value that it holds now, zero on OpRemove out of a snapshot.
	New V
	// FromSnapshot is true when the change was found by comparing a fresh snapshot with what the follower held. On a
	// stream of events New then is a state and not an event.
	FromSnapshot bool
}

// FollowConfig says whom to follow and whom to tell. Handle, Synced and Connected are called by one goroutine, one
// after the other; a Handle that takes its time holds up this follower and nobody else.
type FollowConfig[V any] struct {
	// Source is subscribed to again and again.
	Source Source[V]
	// Equal tells whether a value of a fresh snapshot is the one that the follower holds; then there is no change.
	// Nothing is equal when nil.
	Equal func(held, fresh V) bool
	// Handle gets every change.
	Handle func(Change[V])
	// Synced is called after the changes of each complete snapshot, and after each resumption: all that was to be known
	// then has been handled. It may be nil.
	Synced func()
	// Connected is called with true when a subscription has begun, and with false and the cause at the first failure
	// after that, or at the very first one. It may be nil.
	Connected func(up bool, cause error)
	// Clock times the back-off; the real one when nil.
	Clock clock.Clock
	// Logger gets a line for each loss and each return; the default one when nil.
	Logger *slog.Logger
	// Name is what the log calls the stream.
	Name string
	// Metrics counts what comes; nobody sees it when nil.
	Metrics *FollowedMetrics
}

// The back-off between subscriptions: short enough that a peer that was restarted is followed again before a person
// notices, long enough that one that stays away costs nothing.
const (
	followBackoffMin    = 50 * time.Millisecond
	followBackoffMax    = 2 * time.Second
	followBackoffJitter = 0.3
)

// Follow keeps subscribed until ctx ends, whose error it returns. It resumes where it was, and when it has to begin again
// it compares the snapshot with what it holds, so that Handle sees the same changes either way.
func Follow[V any](ctx context.Context, cfg FollowConfig[V]) error {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Metrics == nil {
		cfg.Metrics = newFollowedMetrics(cfg.Name)
	}
	f := &follower[V]{cfg: cfg, held: map[string]V{}, backoff: newBackoff()}
	for {
		err := f.subscribe(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.setConnected(false, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cfg.Clock.After(f.backoff.Step()):
		}
	}
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: followBackoffMin, Factor: 2, Jitter: followBackoffJitter, Steps: 1 << 30, Cap: followBackoffMax}
}

type follower[V any] struct {
	cfg     FollowConfig[V]
	token   []byte
	held    map[string]V
	backoff wait.Backoff
	// fresh collects a snapshot, in the order of its arrival; nil outside one.
	fresh []Message[V]
	up    bool
	lost  bool
}

func (f *follower[V]) setConnected(up bool, cause error) {
	if up {
		f.backoff = newBackoff()
		if f.lost {
			f.cfg.Logger.Info("stream is back", "stream", f.cfg.Name)
		}
	} else if !f.lost {
		f.cfg.Logger.Info("stream is away, trying again until it is back", "stream", f.cfg.Name, "error", cause)
	}
	f.cfg.Metrics.flows(f.up, up)
	changed := f.up != up || (!up && !f.lost)
	f.up, f.lost = up, !up
	if changed && f.cfg.Connected != nil {
		f.cfg.Connected(up, cause)
	}
}

// subscribe runs one subscription to its end.
func (f *follower[V]) subscribe(ctx context.Context) error {
	sub, err := f.cfg.Source.Subscribe(ctx, f.token)
	if err != nil {
		return err
	}
	defer sub.Close()
	f.fresh = nil
	for {
		m, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		f.cfg.Metrics.note(m.Kind, m.Start, f.cfg.Clock.Now())
		f.handle(m)
	}
}

func (f *follower[V]) handle(m Message[V]) {
	switch m.Kind {
	case KindOpened:
		f.setConnected(true, nil)
		if m.Start == StartResumed && f.cfg.Synced != nil {
			f.cfg.Synced()
		}
	case KindSnapshot:
		f.fresh = append(f.fresh, m)
	case KindSynced:
		f.replace(f.fresh)
		f.fresh = nil
		if f.cfg.Synced != nil {
			f.cfg.Synced()
		}
	case KindDelta:
		f.apply(m)
	case KindBookmark:
	}
	if len(m.Token) > 0 {
		f.token = m.Token
	}
}

func (f *follower[V]) apply(m Message[V]) {
	old, known := f.held[m.Key]
	switch {
	case m.Removed && !known:
		return
	case m.Removed:
		delete(f.held, m.Key)
		f.cfg.Handle(Change[V]{Op: OpRemove, Key: m.Key, Old: old, New: m.Value})
	case known:
		f.held[m.Key] = m.Value
		f.cfg.Handle(Change[V]{Op: OpUpdate, Key: m.Key, Old: old, New: m.Value})
	default:
		f.held[m.Key] = m.Value
		f.cfg.Handle(Change[V]{Op: OpAdd, Key: m.Key, New: m.Value})
	}
}

// replace makes a complete snapshot what is held, and tells the difference: what is gone first, then the rest in the
// order of the snapshot.
func (f *follower[V]) replace(fresh []Message[V]) {
	before := f.held
	f.held = make(map[string]V, len(fresh))
	for _, m := range fresh {
		f.held[m.Key] = m.Value
	}
	for key, old := range before {
		if _, still := f.held[key]; !still {
			f.cfg.Handle(Change[V]{Op: OpRemove, Key: key, Old: old, FromSnapshot: true})
		}
	}
	for _, m := range fresh {
		old, known := before[m.Key]
		switch {
		case !known:
			f.cfg.Handle(Change[V]{Op: OpAdd, Key: m.Key, New: m.Value, FromSnapshot: true})
		case f.cfg.Equal == nil || !f.cfg.Equal(old, m.Value):
			f.cfg.Handle(Change[V]{Op: OpUpdate, Key: m.Key, Old: old, New: m.Value, FromSnapshot: true})
		}
	}
}
