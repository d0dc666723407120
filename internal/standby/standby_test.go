package standby_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	testclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/standby"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a standby process.
type rig struct {
	t     *testing.T
	dir   string
	clock *testclock.FakeClock
	log   *logbuffer.Buffer
	stop  context.CancelFunc
	done  chan result
}

type result struct {
	held *statedir.Held
	err  error
}

func standBy(t *testing.T, dir string) *rig {
	t.Helper()
	r := &rig{
		t:     t,
		dir:   dir,
		clock: testclock.NewFakeClock(time.Now()),
		log:   &logbuffer.Buffer{},
		done:  make(chan result, 1),
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() {
		held, err := standby.Lock(ctx, standby.Config{
			StateDir: dir, Service: layout.ConfigMux, Clock: r.clock, Logger: slog.New(slog.NewTextHandler(r.log, nil)),
		})
		r.done <- result{held, err}
	}()
	return r
}

// tick lets the standby try the lock once.
func (r *rig) tick() {
	r.t.Helper()
	r.until("waits", r.clock.HasWaiters)
	r.clock.Step(200 * time.Millisecond)
}

func (r *rig) until(what string, condition func() bool) {
	r.t.Helper()
	eventually.Wait{State: func() string { return fmt.Sprintf("the log:\n%s", r.log) }}.That(r.t, "it "+what, condition)
}

func lock(t *testing.T, dir string) *statedir.Held {
	t.Helper()
	held, err := statedir.Lock(dir, string(layout.ConfigMux))
	if err != nil {
		t.Fatal(err)
	}
	return held
}

func release(t *testing.T, held *statedir.Held) {
	t.Helper()
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestTheLockIsTakenAtOnceWhenItIsFree(t *testing.T) {
	r := standBy(t, t.TempDir())
	defer r.stop()
	got := <-r.done
	if got.err != nil {
		t.Fatal(got.err)
	}
	release(t, got.held)
	if r.log.String() != "" {
		t.Errorf("it says %s, want an empty text", r.log)
	}
}

func TestAStandbyNamesTheActiveProcessAndTakesOver(t *testing.T) {
	dir := t.TempDir()
	first := lock(t, dir)
	r := standBy(t, dir)
	defer r.stop()
	var holder statedir.Holder
	r.until("answers", func() bool {
		var ok bool
		var err error
		if holder, ok, err = standby.Ask(t.Context(), dir, layout.ConfigMux); err != nil {
			t.Fatal(err)
		}
		return ok
	})
	if holder.PID != os.Getpid() {
		t.Errorf("it stands by for %v, want PID %v", holder, os.Getpid())
	}
	r.tick()
	r.until("waits again", r.clock.HasWaiters)
	select {
	case got := <-r.done:
		t.Fatalf("it did not wait: %v", got.err)
	default:
	}
	release(t, first)
	r.clock.Step(200 * time.Millisecond)
	got := <-r.done
	if got.err != nil {
		t.Fatal(got.err)
	}
	for _, want := range []string{"on standby", "configmux with pid", "taking over"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, r.log)
		}
	}
	// It holds the lock now, and is no longer a standby.
	if _, err := statedir.Lock(dir, string(layout.ConfigMux)); err == nil {
		t.Error("the lock is free")
	}
	if holder, ok, err := standby.Ask(t.Context(), dir, layout.ConfigMux); ok || err != nil {
		t.Errorf("it still answers as a standby, for %v, %v", holder, err)
	}
	release(t, got.held)
}

func TestTwoMayStandBy(t *testing.T) {
	dir := t.TempDir()
	first := lock(t, dir)
	a, b := standBy(t, dir), standBy(t, dir)
	defer a.stop()
	defer b.stop()
	a.until("waits", a.clock.HasWaiters)
	b.until("waits", b.clock.HasWaiters)
	release(t, first)
	a.tick()
	second := <-a.done
	if second.err != nil {
		t.Fatal(second.err)
	}
	b.tick()
	b.until("waits for the second", b.clock.HasWaiters)
	release(t, second.held)
	b.clock.Step(200 * time.Millisecond)
	if third := <-b.done; third.err != nil {
		t.Fatal(third.err)
	} else {
		release(t, third.held)
	}
}

func TestAStandbyStopsOnRequest(t *testing.T) {
	dir := t.TempDir()
	first := lock(t, dir)
	defer release(t, first)
	r := standBy(t, dir)
	r.until("waits", r.clock.HasWaiters)
	r.stop()
	if got := <-r.done; !errors.Is(got.err, context.Canceled) {
		t.Errorf("got.err error = %v, want %v", got.err, context.Canceled)
	}
}

func TestAStateDirectoryThatCannotBeUsedIsNotWaitedFor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := standBy(t, file)
	defer r.stop()
	if got := <-r.done; got.err == nil || !strings.Contains(got.err.Error(), file+" cannot be used") {
		t.Errorf("got.err error = %v, want an error with %q", got.err, file+" cannot be used")
	}
}
