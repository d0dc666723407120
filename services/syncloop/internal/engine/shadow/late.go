package shadow

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/stream"
)

// lateCapacity is the number of messages that wait. Beyond it, the publisher's own bounds apply.
const lateCapacity = 1024

// late is a stream whose messages arrive later. pleg's events do, so that the shadow decides about a change of a pod
// before it sees what the syncloop that runs has made of it.
type late[V any] struct {
	source stream.Source[V]
	by     time.Duration
	clock  clock.Clock
	// seen is called with each message when it is delivered.
	seen func(stream.Message[V])
}

// Subscribe implements stream.Source.
func (l *late[V]) Subscribe(ctx context.Context, token []byte) (stream.Subscription[V], error) {
	inner, err := l.source.Subscribe(ctx, token)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx) //nolint:gosec // Close calls it
	s := &lateSubscription[V]{late: l, inner: inner, cancel: cancel, queue: make(chan arrival[V], lateCapacity)}
	s.running.Go(func() { s.pump(ctx) })
	return s, nil
}

// arrival is a message with the time of its arrival, or the error that ends the subscription.
type arrival[V any] struct {
	message stream.Message[V]
	err     error
	at      time.Time
}

type lateSubscription[V any] struct {
	late    *late[V]
	inner   stream.Subscription[V]
	cancel  context.CancelFunc
	queue   chan arrival[V]
	running sync.WaitGroup
}

// pump receives until the subscription ends.
func (s *lateSubscription[V]) pump(ctx context.Context) {
	for {
		m, err := s.inner.Next(ctx)
		select {
		case s.queue <- arrival[V]{message: m, err: err, at: s.late.clock.Now()}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// Next implements stream.Subscription.
func (s *lateSubscription[V]) Next(ctx context.Context) (stream.Message[V], error) {
	var next arrival[V]
	select {
	case next = <-s.queue:
	case <-ctx.Done():
		return stream.Message[V]{}, ctx.Err()
	}
	if next.err != nil {
		return stream.Message[V]{}, next.err
	}
	if wait := s.late.by - s.late.clock.Since(next.at); wait > 0 {
		timer := s.late.clock.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-ctx.Done():
			return stream.Message[V]{}, ctx.Err()
		}
	}
	s.late.seen(next.message)
	return next.message, nil
}

// Close implements stream.Subscription.
func (s *lateSubscription[V]) Close() {
	s.cancel()
	s.running.Wait()
	s.inner.Close()
}
