package site

import (
	"fmt"
	"sync"

	"github.com/quartet-node/quartet/internal/watchdog"
)

// Loops returns what has to go on for the nodes to get their pods and objects. A goroutine that is stuck holds a lock,
// for which a check waits, or has not ended its step.
func (s *Site) Loops() []watchdog.Loop {
	return []watchdog.Loop{
		{Name: "nodes", Check: free(&s.mu)},
		{Name: "feed", Check: free(&s.feed.mu)},
		{Name: "sources", Check: func() error {
			for _, n := range s.all() {
				if err := n.stands(); err != nil {
					return fmt.Errorf("node %s: %w", n.name, err)
				}
			}
			return nil
		}},
		{Name: "uplink", Check: free(&s.uplink.mu)},
		{Name: "objects", Check: s.objects.Stands},
		// The nodes' locks are alike, and one that is held for long stops the feed of all.
		{Name: "merge", Check: func() error {
			for _, n := range s.all() {
				n.desired.Sources()
			}
			return nil
		}},
		{Name: "objects of the nodes", Check: func() error {
			for _, n := range s.all() {
				n.objects.Subscribers()
			}
			return nil
		}},
	}
}

// free returns a check that waits for a lock.
func free(lock *sync.Mutex) func() error {
	return func() error {
		lock.Lock()
		defer lock.Unlock()
		return nil
	}
}
