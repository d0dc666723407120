// Package eventually has tests wait for conditions. A test names the condition, and the failure text includes it.
package eventually

import (
	"cmp"
	"context"
	"time"
)

const (
	// patience is the time limit for a condition on a busy machine. A passing test needs a part of it.
	patience = time.Minute
	// interval is the time between two checks of a condition, and farInterval that for a condition of another process.
	interval, farInterval = 2 * time.Millisecond, 20 * time.Millisecond
)

// T has the methods of a test that a wait needs. testing.TB and *rapid.T have them.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// That waits until a condition holds. It fails the test after a minute.
func That(t T, what string, holds func() bool) {
	t.Helper()
	Wait{}.That(t, what, holds)
}

// In waits until a condition of another process holds. It is checked every 20 ms. In fails the test when the context
// ends.
func In(ctx context.Context, t T, what string, holds func() bool) {
	t.Helper()
	Wait{Interval: farInterval}.In(ctx, t, what, holds)
}

// Wait has the parameters of a wait. The zero value waits a minute and checks every 2 ms.
type Wait struct {
	// Patience is the time limit for the condition, and Interval the time between two checks. 0 selects the defaults.
	Patience, Interval time.Duration
	// Step is called after each check that fails. For example, it advances a fake clock.
	Step func()
	// State returns a description of the current state for the failure.
	State func() string
}

// That waits until a condition holds. It fails the test after the patience.
func (w Wait) That(t T, what string, holds func() bool) {
	t.Helper()
	// Not the test's context, which has ended when the test cleans up.
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(w.Patience, patience))
	defer cancel()
	w.In(ctx, t, what, holds)
}

// In waits until a condition holds. It fails the test when the context ends.
func (w Wait) In(ctx context.Context, t T, what string, holds func() bool) {
	t.Helper()
	begin := time.Now()
	tick := time.NewTicker(cmp.Or(w.Interval, interval))
	defer tick.Stop()
	for !holds() {
		if w.Step != nil {
			w.Step()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			state := ""
			if w.State != nil {
				state = "; " + w.State()
			}
			t.Fatalf("waited %v until %s: %v%s", time.Since(begin).Round(time.Millisecond), what, ctx.Err(), state)
		}
	}
}
