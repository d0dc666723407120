// Package podchanges collects pods whose dependencies have changed: a config map, a token, a runtime class, the
// services. The watchers of these are constructed before the workers and the volumes that must react. A watcher notes
// the pod here, and Run passes it on.
package podchanges

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Kind is a set of kinds of changes.
type Kind uint8

const (
	// Content means that files of the pod's volumes must be updated.
	Content Kind = 1 << iota
	// Sync means that the worker must sync the pod, because it may wait for the changed object.
	Sync
)

// Changes has the pods that were noted and not passed on yet, at most one entry for each pod. Construct it with New.
// The methods may be called concurrently; Note does not block.
type Changes struct {
	// pending holds one value while there are pods to pass on.
	pending chan struct{}

	mu   sync.Mutex
	pods map[types.UID]Kind
}

// New returns Changes without a pod.
func New() *Changes { return &Changes{pending: make(chan struct{}, 1), pods: map[types.UID]Kind{}} }

// Note returns a function that notes a change of a pod.
func (c *Changes) Note(kind Kind) func(uid types.UID) {
	return func(uid types.UID) {
		c.mu.Lock()
		c.pods[uid] |= kind
		c.mu.Unlock()
		select {
		case c.pending <- struct{}{}:
		default:
		}
	}
}

// Run passes on the noted pods until ctx ends, and returns the error of ctx. It calls refresh for a pod before poke, so
// that the worker finds the volumes marked.
func (c *Changes) Run(ctx context.Context, refresh, poke func(uid types.UID)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.pending:
		}
		for uid, kind := range c.take() {
			if kind&Content != 0 {
				refresh(uid)
			}
			if kind&Sync != 0 {
				poke(uid)
			}
		}
	}
}

func (c *Changes) take() map[types.UID]Kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.pods
	c.pods = map[types.UID]Kind{}
	return taken
}
