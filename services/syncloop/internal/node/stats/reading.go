package stats

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// reading caches a value that one goroutine reads again on demand when it is too old.
type reading[T any] struct {
	clock clock.WithTicker
	read  func(context.Context) (T, error)
	// wanted requests a read. It holds one request because one read serves all callers.
	wanted chan struct{}

	mu    sync.Mutex
	value T
	err   error
	// begun is the time at which the last read began; zero before the first read has ended.
	begun time.Time
	// next is closed and replaced when a read ends.
	next chan struct{}
}

func newReading[T any](clk clock.WithTicker, read func(context.Context) (T, error)) *reading[T] {
	return &reading[T]{clock: clk, read: read, wanted: make(chan struct{}, 1), next: make(chan struct{})}
}

// run serves requests until ctx ends. It returns the error of ctx.
func (r *reading[T]) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.wanted:
		}
		begun := r.clock.Now()
		value, err := r.read(ctx)
		r.mu.Lock()
		r.value, r.err, r.begun = value, err, begun
		close(r.next)
		r.next = make(chan struct{})
		r.mu.Unlock()
	}
}

// errTimeout is returned by get when its timeout fires.
var errTimeout = errors.New("timeout: the last read has not ended")

// get returns a value that is not older than age, and waits for one if necessary. It returns the error of ctx if that
// ends first, and errTimeout if timeout fires first; a nil timeout never fires. If the read fails, get returns the
// value and the error of the read. A failed read is used only by callers that were already waiting when it began.
func (r *reading[T]) get(ctx context.Context, age time.Duration, timeout <-chan time.Time) (T, error) {
	var none T
	requested := r.clock.Now()
	for {
		r.mu.Lock()
		value, err, begun, next := r.value, r.err, r.begun, r.next
		r.mu.Unlock()
		if fresh := requested.Sub(begun) <= 0; !begun.IsZero() && (fresh || err == nil && requested.Sub(begun) <= age) {
			return value, err
		}
		select {
		case r.wanted <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case <-timeout:
			return none, errTimeout
		case <-next:
		}
	}
}

// last returns the last value without waiting. ok is false if it is older than age or its read failed.
func (r *reading[T]) last(age time.Duration) (value T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, !r.begun.IsZero() && r.err == nil && r.clock.Since(r.begun) <= age
}
