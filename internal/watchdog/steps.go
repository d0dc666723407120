package watchdog

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Steps are the steps of a loop that waits between them as long as it likes: for its next work, a disk, the runtime or
// an API server. A step waits for none of these, or has a deadline within the limit; one that takes longer is stuck.
type Steps struct {
	clock clock.PassiveClock
	limit time.Duration

	mu sync.Mutex
	// since is the begin of the present step; zero between two steps.
	since time.Time
}

// NewSteps returns the Steps of one goroutine. The longest deadline is that of the calls in a step.
func NewSteps(clock clock.PassiveClock, longest time.Duration) *Steps {
	return &Steps{clock: clock, limit: longest + Limit}
}

// Do does a step.
func (s *Steps) Do(step func()) {
	s.note(s.clock.Now())
	defer s.note(time.Time{})
	step()
}

func (s *Steps) note(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = since
}

// Stands returns why the loop stands still; nil if it does not. It is a Check.
func (s *Steps) Stands() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return nil
	}
	if age := s.clock.Since(s.since); age > s.limit {
		return fmt.Errorf("a step of it has not ended for %v", age.Round(time.Second))
	}
	return nil
}
