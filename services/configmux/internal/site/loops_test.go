package site

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/watchdog"
)

// TestAStuckLoopOfASiteIsFound has a source that is stuck, and holds one lock after another, as a goroutine does that
// is stuck. The check of its loop ends only when the lock is free.
func TestAStuckLoopOfASiteIsFound(t *testing.T) {
	stuck := errors.New("a step of it has not ended for 1m0s")
	s := &Site{nodes: map[string]*Node{"n1": {name: "n1", stands: func() error { return stuck }}}, uplink: &uplink{}}
	s.feed = &feed{site: s}
	for _, loop := range s.Loops() {
		if loop.Name == "sources" {
			if err := loop.Check(); !errors.Is(err, stuck) || !strings.Contains(err.Error(), "n1") {
				t.Errorf("the check of the sources ends with %v, want the node and %v", err, stuck)
			}
		}
	}
	for name, lock := range map[string]*sync.Mutex{"uplink": &s.uplink.mu, "nodes": &s.mu, "feed": &s.feed.mu} {
		loops := s.Loops()
		i := slices.IndexFunc(loops, func(l watchdog.Loop) bool { return l.Name == name })
		if i < 0 {
			t.Fatalf("%s is not checked", name)
		}
		lock.Lock()
		ended := make(chan error, 1)
		go func() { ended <- loops[i].Check() }()
		select {
		case err := <-ended:
			t.Errorf("the check of %s has ended with %v while it is stuck", name, err)
		case <-time.After(50 * time.Millisecond):
		}
		lock.Unlock()
		if err := <-ended; err != nil {
			t.Errorf("the check of %s ends with %v after that", name, err)
		}
	}
}
