// Package watchdog finds processes that stand still. Each process checks its own loops with a Dog, publishes the
// result in its health, and reports to its parent while all of them turn. A parent that gets no reports for too long
// ends it: the supervisor of "quartet node" and the command "guard" in a container with a Guard, systemd by
// WatchdogSec.
package watchdog

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/logging"
)

const (
	// Period is the interval of checks. Each is a reason for a process at rest to wake, so all are due at the same time.
	Period = 4 * time.Second
	// Limit is how long a loop may take for a turn, and a check for its answer, before the loop counts as standing still.
	Limit = 20 * time.Second
)

// Loop is a loop of a process, or a lock that many of its goroutines need.
type Loop struct {
	// Name is its name in the log.
	Name string
	// Check returns why the loop stands still; nil while it turns. It may block only as long as the loop does.
	Check func() error
	// Periods is the number of periods between two checks, together less than Limit; 0 is 1.
	Periods int
}

// Turned returns a Check of a loop that records the time of its last turn: it fails if that is longer ago than the
// limit. A zero time is a loop that has not begun.
func Turned(now func() time.Time, last func() time.Time, limit time.Duration) func() error {
	return func() error {
		at := last()
		if age := now().Sub(at); !at.IsZero() && age > limit {
			return fmt.Errorf("it has not turned for %v", age.Round(time.Second))
		}
		return nil
	}
}

// Config holds the parameters of a Dog.
type Config struct {
	Loops []Loop
	// Changed is called with the names of the loops that stand still, sorted, at each change.
	Changed func(stuck []string)
	// Alive is called at the start, and in each period in which no loop stands still; it may be nil.
	Alive  func()
	Clock  clock.Clock
	Logger *slog.Logger
}

// Dog checks the loops of this process.
type Dog struct {
	cfg Config

	mu sync.Mutex
	// good has the time of the last good check of each loop.
	good map[string]time.Time
	// reasons has the error of the last check of each loop.
	reasons map[string]string
}

// New returns a Dog. Its Run has to run.
func New(cfg Config) *Dog {
	return &Dog{cfg: cfg, good: map[string]time.Time{}, reasons: map[string]string{}}
}

// Run checks until ctx ends. A check that blocks delays only itself, and its goroutine ends after it.
func (d *Dog) Run(ctx context.Context) error {
	due := make([]chan struct{}, len(d.cfg.Loops))
	for i, loop := range d.cfg.Loops {
		d.note(loop.Name, nil)
		due[i] = make(chan struct{}, 1)
		// Run does not wait for the checks, because a blocked loop must not block the end of the process.
		go func() {
			for range due[i] {
				d.note(loop.Name, loop.Check())
			}
		}()
	}
	defer func() {
		for _, one := range due {
			close(one)
		}
	}()
	var last []string
	for period := 0; ; period++ {
		for i, loop := range d.cfg.Loops {
			if period%max(loop.Periods, 1) == 0 {
				request(due[i])
			}
		}
		last = d.publish(ctx, last)
		select {
		case <-ctx.Done():
			return nil
		case <-d.cfg.Clock.After(Period):
		}
	}
}

// request requests a check, unless the one before is still running or has not begun.
func request(due chan<- struct{}) {
	select {
	case due <- struct{}{}:
	default:
	}
}

func (d *Dog) note(name string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.reasons[name] = err.Error()
		return
	}
	delete(d.reasons, name)
	d.good[name] = d.cfg.Clock.Now()
}

// publish publishes what stands still, if that has changed, and returns it.
func (d *Dog) publish(ctx context.Context, last []string) []string {
	stuck := d.stuck()
	if !slices.Equal(stuck, last) {
		d.log(ctx, stuck)
		d.cfg.Changed(stuck)
	}
	if len(stuck) == 0 && d.cfg.Alive != nil {
		d.cfg.Alive()
	}
	return stuck
}

// stuck returns the names of the loops that stand still: those whose check fails, or has not returned for Limit.
func (d *Dog) stuck() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for _, loop := range d.cfg.Loops {
		if d.reasons[loop.Name] != "" || d.cfg.Clock.Since(d.good[loop.Name]) > Limit {
			names = append(names, loop.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (d *Dog) log(ctx context.Context, stuck []string) {
	if len(stuck) == 0 {
		d.cfg.Logger.InfoContext(ctx, "every loop of this process turns again")
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range stuck {
		reason := d.reasons[name]
		if reason == "" {
			reason = "its check has not returned for " + d.cfg.Clock.Since(d.good[name]).Round(time.Second).String()
		}
		d.cfg.Logger.ErrorContext(ctx, "a loop of this process stands still; the process is restarted if that does not end",
			"loop", name, logging.KeyReason, reason)
	}
}
