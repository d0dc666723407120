// Package watchdog finds processes that stand still. Each process checks its own loops with a Dog, publishes the
// result in its health, and reports to its parent while all of them turn. A parent that gets no reports for too long
// ends it: the supervisor of "quartet node" and the command "guard" in a container with a Guard, systemd by
// WatchdogSec.
package watchdog

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/logging"
)

const (
	// Period is the interval of checks.
	Period = 2 * time.Second
	// Limit is how long a loop may take for a turn, and a check for its answer, before the loop counts as standing still.
	Limit = 20 * time.Second
)

// Loop is a loop of a process, or a lock that many of its goroutines need.
type Loop struct {
	// Name is its name in the log.
	Name string
	// Check returns why the loop stands still; nil while it turns. It may block only as long as the loop does.
	Check func() error
	// Every is the interval of checks, at most half of Limit; 0 is Period.
	Every time.Duration
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
	group, ctx := errgroup.WithContext(ctx)
	for _, loop := range d.cfg.Loops {
		d.note(loop.Name, nil)
		due := make(chan struct{}, 1)
		// The check runs in a goroutine that Run does not wait for, because a blocked loop must not block the end of the
		// process.
		go func() {
			for range due {
				d.note(loop.Name, loop.Check())
			}
		}()
		group.Go(func() error {
			defer close(due)
			d.pace(ctx, cmp.Or(loop.Every, Period), due)
			return nil
		})
	}
	group.Go(func() error {
		d.watch(ctx)
		return nil
	})
	return group.Wait()
}

// pace requests a check in each period, unless one is still running.
func (d *Dog) pace(ctx context.Context, period time.Duration, due chan<- struct{}) {
	for {
		select {
		case due <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
			return
		case <-d.cfg.Clock.After(period):
		}
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

// watch publishes what stands still.
func (d *Dog) watch(ctx context.Context) {
	var last []string
	for {
		stuck := d.stuck()
		if !slices.Equal(stuck, last) {
			d.log(ctx, stuck)
			d.cfg.Changed(stuck)
			last = stuck
		}
		if len(stuck) == 0 && d.cfg.Alive != nil {
			d.cfg.Alive()
		}
		select {
		case <-ctx.Done():
			return
		case <-d.cfg.Clock.After(Period):
		}
	}
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
