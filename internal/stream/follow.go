package stream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

// Op is the kind of a change of a key.
type Op int

// The changes that a follower handles, in the same way for deltas and for a fresh snapshot.
const (
	OpAdd Op = iota + 1
	OpUpdate
	OpRemove
)

// Change is one change of a key.
type Change[V any] struct {
	Op  Op
	Key string
	// Old is the previous value of the follower; zero for OpAdd.
	Old V
	// New is the new value; zero for an OpRemove from a snapshot.
	New V
	// FromSnapshot is true if the change is a difference between a fresh snapshot and the follower's state. On a stream of
	// events, New is then a state and not an event.
	FromSnapshot bool
}

// FollowConfig holds the parameters of Follow. One goroutine calls Handle, Synced and Connected, one after the other; a
// slow Handle delays only this follower.
type FollowConfig[V any] struct {
	// Source is the stream. Follow subscribes to it repeatedly.
	Source Source[V]
	// Equal reports whether a value of a fresh snapshot equals the follower's value; then there is no change. If it is
	// nil, no values are equal.
	Equal func(held, fresh V) bool
	// Handle handles every change.
	Handle func(Change[V])
	// Synced is called after the changes of each complete snapshot, and after each resumption, when all changes so far
	// have been handled. It may be nil.
	Synced func()
	// Connected is called with true when a subscription has begun, and with false and the cause at the first failure after
	// that, or at the first failure of all. It may be nil.
	Connected func(up bool, cause error)
	// Clock times the back-off; the real clock if nil.
	Clock clock.Clock
	// Logger logs each loss and each return of the stream; slog's default if nil.
	Logger *slog.Logger
	// Name is the name of the stream in the log.
	Name string
	// Metrics counts the messages; nothing is counted if it is nil.
	Metrics *FollowedMetrics
}

// The back-off between subscriptions. It is short enough that a restarted peer is followed again before a person
// notices, and long enough that an absent one costs little.
const (
	followBackoffMin    = 50 * time.Millisecond
	followBackoffMax    = 2 * time.Second
	followBackoffJitter = 0.3
)

// RefusedError is the error of a Source whose publisher will refuse each subscription. A service of a node tries again,
// because the other side may be mended; a command for a user ends, see streamrpc.UntilRefused.
type RefusedError struct{ Err error }

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap implements errors.Unwrap.
func (e *RefusedError) Unwrap() error { return e.Err }

// Follow stays subscribed until ctx ends, and returns the error of ctx, or until the Source fails with a *RefusedError,
// which it returns. It resumes where possible. Otherwise it compares the new snapshot with its state, so that Handle
// receives the same changes in both cases.
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
		if refused := (*RefusedError)(nil); errors.As(err, &refused) {
			return refused
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
	return wait.Backoff{
		Duration: followBackoffMin,
		Factor:   2,
		Jitter:   followBackoffJitter,
		Steps:    1 << 30,
		Cap:      followBackoffMax,
	}
}

type follower[V any] struct {
	cfg     FollowConfig[V]
	token   []byte
	held    map[string]V
	backoff wait.Backoff
	// fresh collects a snapshot in the order of arrival; nil outside of a snapshot.
	fresh []Message[V]
	up    bool
	lost  bool
	// otherAPI is the API of the last subscription if it is not this process's.
	otherAPI string
}

func (f *follower[V]) setConnected(up bool, cause error) {
	if up {
		f.backoff = newBackoff()
		if f.lost {
			f.cfg.Logger.Info("stream is connected again", "stream", f.cfg.Name)
		}
	} else if !f.lost {
		f.cfg.Logger.Info("stream is disconnected; retrying until it is connected", "stream", f.cfg.Name, "error", cause)
	}
	f.cfg.Metrics.flows(f.up, up)
	changed := f.up != up || (!up && !f.lost)
	f.up, f.lost = up, !up
	if changed && f.cfg.Connected != nil {
		f.cfg.Connected(up, cause)
	}
}

// subscribe runs one subscription until it ends.
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
		f.compareAPI(m.API, m.OtherAPI)
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
	case KindBookmark, KindUnknown:
	}
	if len(m.Token) > 0 {
		f.token = m.Token
	}
}

// compareAPI counts the publisher's version of the Kubernetes API, and logs one that is not this process's, once for
// each version.
func (f *follower[V]) compareAPI(version string, differs bool) {
	f.cfg.Metrics.speaks(version, differs)
	other := ""
	if differs {
		other = version
	}
	if differs && other != f.otherAPI {
		f.cfg.Logger.Warn("the process that publishes a stream has another version of k8s.io/api: fields of pods and "+
			"other objects that only one of the two knows are lost; run the same version of both",
			"stream", f.cfg.Name, "version", other)
	}
	f.otherAPI = other
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

// replace replaces the state by a complete snapshot and handles the differences: removals first, then the rest in the
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
