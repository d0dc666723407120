package rpc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
)

const (
	// stopTimeout bounds the wait for calls in flight.
	stopTimeout = 5 * time.Second
	// streamTimeout bounds the following wait for the streams, whose contexts have ended. A stream whose subscriber does
	// not read cannot end; all others take milliseconds. A stream that is cut off loses nothing, because it resumes.
	streamTimeout = 500 * time.Millisecond
)

// stop waits for calls in flight and for the end of the streams, and cuts off the others.
func stop(server *grpc.Server, unary *calls) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.GracefulStop()
	}()
	await(stopTimeout, unary.stop())
	await(streamTimeout, ended)
	server.Stop()
	<-ended
}

// await waits until a channel is closed, but not longer than limit.
func await(limit time.Duration, closed <-chan struct{}) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
	}
}

// calls counts the calls in flight that are not streams.
type calls struct {
	mu       sync.Mutex
	inFlight int
	stopping bool
	// none is closed when no call is in flight after stop.
	none chan struct{}
}

func newCalls() *calls { return &calls{none: make(chan struct{})} }

// intercept counts one call.
func (c *calls) intercept(
	ctx context.Context,
	req any,
	_ *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	c.add(1)
	defer c.add(-1)
	return handler(ctx, req)
}

func (c *calls) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight += n
	c.look()
}

// stop returns a channel that is closed when no call is in flight.
func (c *calls) stop() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	c.look()
	return c.none
}

// look closes none if no call is in flight. Later calls are cut off, because their callers were notified that the
// server is stopping. The caller holds the lock.
func (c *calls) look() {
	if c.stopping && c.inFlight == 0 {
		c.stopping = false
		close(c.none)
	}
}
