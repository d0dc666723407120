// Package starting says in the log what a process is doing whose start takes long, such as the reading of a file on a
// disk that hangs. Nobody else can say it: a process that does not serve yet has no health, and one that waits for a
// disk cannot be ended.
package starting

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// patience is how long a step may take before it is reported. On a healthy disk each takes milliseconds.
const patience = 30 * time.Second

// period is the interval of reports and of looks at the step, which is reported that much late at most.
const period = 5 * time.Second

// Steps has the present step of a start. A nil Steps has none, and its methods do nothing.
type Steps struct {
	mu sync.Mutex
	// step is the present step; empty if it may take long.
	step string
	// begun is when it began, and told that it was reported.
	begun time.Time
	told  bool
	// alive reports that the process works; nil if nobody is told.
	alive func()

	clock clock.Clock
	end   context.CancelFunc
}

// Watch reports each step that takes longer than 30 s, until the end of ctx or Serving. The first step is the start
// itself.
func Watch(ctx context.Context, clock clock.WithTicker, logger *slog.Logger) *Steps {
	ctx, end := context.WithCancel(ctx)
	s := &Steps{step: "start", begun: clock.Now(), clock: clock, end: end}
	ticker := clock.NewTicker(period)
	go func() {
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C():
				s.reportAlive()
				if step, took := s.late(); step != "" {
					logger.Warn("the start of this process takes long: if the step reads a file, check whether its disk answers",
						"step", step, "for", took.Round(time.Second))
				}
			}
		}
	}()
	return s
}

// late returns a step that takes too long, once; empty for none.
func (s *Steps) late() (step string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took = s.clock.Since(s.begun)
	if s.told || took < patience {
		return "", 0
	}
	s.told = true
	return s.step, took
}

// Report calls alive at once and then every 5 s until Serving, which proves that the process is not stopped, whatever
// it waits for.
func (s *Steps) Report(alive func()) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.alive = alive
	s.mu.Unlock()
	s.reportAlive()
}

func (s *Steps) reportAlive() {
	s.mu.Lock()
	alive := s.alive
	s.mu.Unlock()
	if alive != nil {
		alive()
	}
}

// At begins a step, such as "read FILE". An empty one may take as long as it likes.
func (s *Steps) At(step string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step, s.begun, s.told = step, s.clock.Now(), false
}

// Serving ends the start.
func (s *Steps) Serving() {
	if s != nil {
		s.end()
	}
}
