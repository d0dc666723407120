package mux

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Opening is a sink that passes readings to another sink and records which sources are ready. It delays subscribers
// after a restart or a takeover, so that they do not see a node without pods first.
type Opening struct {
	sink source.Sink

	mu     sync.Mutex
	silent map[string]bool
	ready  chan struct{}
}

// NewOpening returns an Opening for sources that are not ready yet.
func NewOpening(sources []source.Source, sink source.Sink) *Opening {
	o := &Opening{sink: sink, silent: map[string]bool{}, ready: make(chan struct{})}
	for _, s := range sources {
		o.silent[s.Name()] = true
	}
	if len(o.silent) == 0 {
		close(o.ready)
	}
	return o
}

// Set implements source.Sink.
func (o *Opening) Set(name string, reading source.Reading) {
	o.sink.Set(name, reading)
	o.mu.Lock()
	defer o.mu.Unlock()
	if reading.Failed || !o.silent[name] {
		return
	}
	delete(o.silent, name)
	if len(o.silent) == 0 {
		close(o.ready)
	}
}

// Wait returns when each source is ready, after the limit, or when ctx ends, because an unreadable source must not hide
// the others.
func (o *Opening) Wait(ctx context.Context, limit time.Duration, clk clock.Clock) {
	select {
	case <-o.ready:
	case <-clk.After(limit):
	case <-ctx.Done():
	}
}
