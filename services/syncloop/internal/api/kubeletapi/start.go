package kubeletapi

import (
	"context"
	"net/http"
	"time"
)

const (
	// startTimeout is how long requests wait for a process that is starting. The API server, kubectl and metrics-server
	// wait longer for an answer.
	startTimeout = 15 * time.Second
	// maxWaiting is how many requests may wait at once. It is more than the clients of one node send within startTimeout.
	maxWaiting = 256
)

// Start is the start of the process. A request that needs the pods or the runtime waits until the start is over, so
// that it does not fail because the process has been restarted. NewStart makes one.
type Start struct {
	over   chan struct{}
	places chan struct{}
}

// NewStart returns the start of a process.
func NewStart() *Start {
	return &Start{over: make(chan struct{}), places: make(chan struct{}, maxWaiting)}
}

// Run ends the start when ready returns, or after startTimeout. The context of ready ends then. Call it once.
func (s *Start) Run(ctx context.Context, ready func(ctx context.Context)) error {
	defer close(s.over)
	bounded, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ready(bounded)
	return nil
}

// wait returns when the start is over, when ctx ends, or at once if too many requests wait.
func (s *Start) wait(ctx context.Context) {
	select {
	case s.places <- struct{}{}:
	default:
		return
	}
	defer func() { <-s.places }()
	select {
	case <-ctx.Done():
	case <-s.over:
	}
}

// afterStart returns a handler that calls next when the start is over. If the pods or the runtime are not there by
// then, next answers with the reason.
func (c Config) afterStart(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.Start.wait(r.Context())
		next(w, r)
	}
}
