package rpc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
)

const (
	// stopTimeout is how long a stop waits for calls in flight.
	stopTimeout = 5 * time.Second
	// streamTimeout is how long it then waits for the streams, which have been told to end. One whose subscriber has stopped
	// reading cannot be told; all others take milliseconds, and lose nothing if they are cut off: they resume.
	streamTimeout = 500 * time.Millisecond
)

// stop waits for calls in flight and for the streams to say that they end, and cuts off what is left.
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

// await waits until a channel is closed, but no longer than limit.
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
func (c *calls) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
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

// stop returns a channel that is closed once no call is in flight.
func (c *calls) stop() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	c.look()
	return c.none
}

// look closes none when it is time. A call that comes after that is cut off: its caller has been told that the server goes.
// c is locked.
func (c *calls) look() {
	if c.stopping && c.inFlight == 0 {
		c.stopping = false
		close(c.none)
	}
}
