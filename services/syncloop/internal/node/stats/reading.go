package stats

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// reading is something that one goroutine reads when it is asked for and has become old.
type reading[T any] struct {
	clock clock.WithTicker
	read  func(context.Context) (T, error)
	// wanted tells that somebody waits. It holds one: a reading is for all who wait.
	wanted chan struct{}

	mu    sync.Mutex
	value T
	err   error
	// begun is when the last reading began; zero before the first has ended.
	begun time.Time
	// next is closed, and another one made, when a reading has ended.
	next chan struct{}
}

func newReading[T any](with clock.WithTicker, read func(context.Context) (T, error)) *reading[T] {
	return &reading[T]{clock: with, read: read, wanted: make(chan struct{}, 1), next: make(chan struct{})}
}

// run reads until ctx ends, and returns its error.
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

// errImpatient says that patience was over before there was anything.
var errImpatient = errors.New("it takes longer than it is waited for")

// get returns what was read no longer ago than an age, or waits for it: until ctx ends, whose error it then fails with, or patience
// says that it has waited long enough, for errImpatient. A nil patience has no end. It fails with what the reading has failed of, too,
// and then also returns what was read all the same; a failure is as old as it may be at once.
func (r *reading[T]) get(ctx context.Context, age time.Duration, patience <-chan time.Time) (T, error) {
	var none T
	asked := r.clock.Now()
	for {
		r.mu.Lock()
		value, err, begun, next := r.value, r.err, r.begun, r.next
		r.mu.Unlock()
		if fresh := asked.Sub(begun) <= 0; !begun.IsZero() && (fresh || err == nil && asked.Sub(begun) <= age) {
			return value, err
		}
		select {
		case r.wanted <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case <-patience:
			return none, errImpatient
		case <-next:
		}
	}
}

// last returns what was read last without waiting, if that is not older than an age and went well.
func (r *reading[T]) last(age time.Duration) (T, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, !r.begun.IsZero() && r.err == nil && r.clock.Since(r.begun) <= age
}
