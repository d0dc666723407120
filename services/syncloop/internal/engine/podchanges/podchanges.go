// Package podchanges collects the pods for which something has changed that they use: a config map, a token, a runtime class, the
// services. What watches these is constructed before the workers and the volumes that must react; it notes the pod here, and Run
// hands it on.
package podchanges

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// What says what has changed for a pod.
type What uint8

const (
	// Content means that files of the pod's volumes are to be brought up to date.
	Content What = 1 << iota
	// Sync means that the worker is to look at the pod, because it may wait for what has changed.
	Sync
)

// Changes are the pods that were noted and not handed on yet: at most one entry for each pod. Make it with New. The methods may be
// called from any goroutine and wait for nothing.
type Changes struct {
	// some holds one value: it says that there is something, not how much.
	some chan struct{}

	mu   sync.Mutex
	pods map[types.UID]What
}

// New returns Changes without a pod.
func New() *Changes { return &Changes{some: make(chan struct{}, 1), pods: map[types.UID]What{}} }

// Note returns the function that notes a change for a pod.
func (c *Changes) Note(what What) func(uid types.UID) {
	return func(uid types.UID) {
		c.mu.Lock()
		c.pods[uid] |= what
		c.mu.Unlock()
		select {
		case c.some <- struct{}{}:
		default:
		}
	}
}

// Run hands on what was noted until ctx ends, whose error it returns. A pod is refreshed before it is poked, so that
// its worker finds the volumes marked.
func (c *Changes) Run(ctx context.Context, refresh, poke func(uid types.UID)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.some:
		}
		for uid, what := range c.take() {
			if what&Content != 0 {
				refresh(uid)
			}
			if what&Sync != 0 {
				poke(uid)
			}
		}
	}
}

func (c *Changes) take() map[types.UID]What {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.pods
	c.pods = map[types.UID]What{}
	return taken
}
