package watchdog_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// started runs a function with a context until the test ends.
func started(t *testing.T, run func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func TestALoopThatBlocksOrSaysThatItStandsIsFound(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	blocked, fails := make(chan struct{}), atomic.Bool{}
	var log logbuffer.Buffer
	changes := make(chan []string, 10)
	var alive atomic.Int32
	dog := watchdog.New(watchdog.Config{
		Loops: []watchdog.Loop{
			{Name: "locked", Check: func() error { <-blocked; return nil }},
			{Name: "slow", Check: func() error {
				if fails.Load() {
					return errors.New("it is slow")
				}
				return nil
			}},
		},
		Changed: func(stuck []string) { changes <- stuck },
		Alive:   func() { alive.Add(1) },
		Clock:   clock, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	started(t, func(ctx context.Context) {
		if err := dog.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	unblock := func() { close(blocked) }
	defer func() { unblock() }()
	// next steps the clock until the next change.
	next := func() (stuck []string) {
		t.Helper()
		eventually.That(t, "what stands still changes", func() bool {
			select {
			case stuck = <-changes:
				return true
			default:
				clock.Step(watchdog.Period)
				return false
			}
		})
		return stuck
	}
	begun := clock.Now()
	if got, want := next(), []string{"locked"}; !slices.Equal(got, want) {
		t.Errorf("%q stand still, want %q", got, want)
	}
	if took := clock.Since(begun); took < watchdog.Limit {
		t.Errorf("a check that blocks counted after %v", took)
	}
	if alive.Load() == 0 {
		t.Error("the process was never reported as alive while its loops turned")
	}
	fails.Store(true)
	if got, want := next(), []string{"locked", "slow"}; !slices.Equal(got, want) {
		t.Errorf("%q stand still, want %q", got, want)
	}
	unblock()
	unblock = func() {}
	if got, want := next(), []string{"slow"}; !slices.Equal(got, want) {
		t.Errorf("%q stand still, want %q", got, want)
	}
	fails.Store(false)
	if got := next(); len(got) != 0 {
		t.Errorf("%q stand still, want none", got)
	}
	for _, want := range []string{"its check has not returned for", "it is slow", "every loop of this process turns again"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q: %s", want, log.String())
		}
	}
}

func TestALoopTurnsUntilItsLimit(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		last time.Time
		want string
	}{
		"not begun": {time.Time{}, ""},
		"turns":     {now.Add(-time.Minute), ""},
		"stands":    {now.Add(-61 * time.Second), "it has not turned for 1m1s"},
	} {
		check := watchdog.Turned(func() time.Time { return now }, func() time.Time { return test.last }, time.Minute)
		got := ""
		if err := check(); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// guarded runs a Guard of a process that stands still while stands is true, until the process has ended.
type guarded struct {
	stands  atomic.Bool
	clock   *clocktesting.FakeClock
	signals chan syscall.Signal
	log     logbuffer.Buffer
}

func newGuarded(t *testing.T, ended func(syscall.Signal) bool) *guarded {
	t.Helper()
	g := &guarded{clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), signals: make(chan syscall.Signal, 10)}
	started(t, func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		(&watchdog.Guard{
			Name: "pleg", Patience: watchdog.DefaultPatience, Clock: g.clock,
			Logger: slog.New(slog.NewTextHandler(&g.log, nil)),
			Ask: func(context.Context) error {
				if g.stands.Load() {
					return errors.New("no answer")
				}
				return nil
			},
			Signal: func(signal syscall.Signal) error {
				g.signals <- signal
				if ended(signal) {
					cancel()
				}
				return nil
			},
		}).Run(ctx)
	})
	return g
}

// step steps the clock by the time once the Guard waits for it.
func (g *guarded) step(t *testing.T, by time.Duration) {
	t.Helper()
	eventually.That(t, "the guard waits", g.clock.HasWaiters)
	g.clock.Step(by)
}

func (g *guarded) signal(t *testing.T, want syscall.Signal) {
	t.Helper()
	select {
	case got := <-g.signals:
		if got != want {
			t.Errorf("the signal is %v, want %v", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no signal, want %v", want)
	}
}

func TestAProcessThatStandsStillLogsItsGoroutinesAndIsKilled(t *testing.T) {
	g := newGuarded(t, func(signal syscall.Signal) bool { return signal == syscall.SIGKILL })
	g.stands.Store(true)
	for range 7 { // the first question, and 30 s more
		g.step(t, 5*time.Second)
	}
	g.signal(t, syscall.SIGQUIT)
	g.signal(t, syscall.SIGCONT)
	g.step(t, 5*time.Second)
	g.signal(t, syscall.SIGKILL)
	if !strings.Contains(g.log.String(), "it logs its goroutines and is ended") {
		t.Errorf("the log is %s", g.log.String())
	}
}

func TestAProcessThatAnswersAgainIsLeftAlone(t *testing.T) {
	g := newGuarded(t, func(syscall.Signal) bool { return true })
	for range 4 {
		g.stands.Store(true)
		for range 5 {
			g.step(t, 5*time.Second)
		}
		g.stands.Store(false)
		g.step(t, 5*time.Second)
		eventually.That(t, "the guard waits", g.clock.HasWaiters)
	}
	if len(g.signals) > 0 {
		t.Errorf("it got %v", <-g.signals)
	}
}
