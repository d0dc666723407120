package player

import (
	"sync"
	"testing"
	"time"
)

// TestTheClockWaitsForWhoDecides: the wait ends when the goroutine that works has ended, and not before.
func TestTheClockWaitsForWhoDecides(t *testing.T) {
	r := newRester()
	var decided sync.WaitGroup
	var done time.Time
	decided.Go(func() {
		for begun := time.Now(); time.Since(begun) < 100*time.Millisecond; { // it works, and does not wait
			done = time.Now()
		}
	})
	r.await(t.Context())
	rested := time.Now()
	decided.Wait()
	if rested.Before(done) {
		t.Errorf("the wait ended %v before the decision", done.Sub(rested))
	}
}
