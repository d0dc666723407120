// Package eventually has tests wait for conditions. A test names what it waits for, and the failure says so.
package eventually

import (
	"cmp"
	"context"
	"time"
)

const (
	// patience is how long a condition may take on a busy machine. A test that passes takes a part of it.
	patience = time.Minute
	// interval is how often a condition is checked, and farInterval how often one of another process is.
	interval, farInterval = 2 * time.Millisecond, 20 * time.Millisecond
)

// T is what a wait needs of a test. testing.TB and *rapid.T have it.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// That waits until a condition holds. It fails the test after a minute.
func That(t T, what string, holds func() bool) {
	t.Helper()
	Wait{}.That(t, what, holds)
}

// In waits until a condition of another process holds, which is checked every 20 ms. It fails the test when the context
// ends.
func In(ctx context.Context, t T, what string, holds func() bool) {
	t.Helper()
	Wait{Interval: farInterval}.In(ctx, t, what, holds)
}

// Wait says how to wait. The zero value waits a minute and checks every 2 ms.
type Wait struct {
	// Patience is how long the condition may take, and Interval how often it is checked; 0 is as for the zero value.
	Patience, Interval time.Duration
	// Step is called after each check in which the condition did not hold. It moves a fake clock, for example.
	Step func()
	// State describes what is seen instead, for the failure.
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
