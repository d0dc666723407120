package systemd_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/test/eventually"
)

// childVariable makes this program report what its value says, and then wait for its end.
const childVariable = "SYSTEMD_TEST_CHILD"

func TestMain(m *testing.M) {
	if says := os.Getenv(childVariable); says != "" {
		notifier, logger := systemd.Take(), slog.Default()
		if strings.Contains(says, "store") {
			notifier.Store("api", os.Stdin, logger)
		}
		if strings.Contains(says, "alive") {
			notifier.Alive(logger)
		}
		// The last message: once it is heard, the others are.
		if strings.Contains(says, "ready") {
			notifier.Ready(logger)
		}
		_, _ = os.Stdin.Read(make([]byte, 1)) // the end of the input is what it waits for
		return
	}
	os.Exit(m.Run())
}

// child is this program as a child process.
type child struct {
	pid int
	end func()
}

func startChild(t *testing.T, l *systemd.Listener, says string) child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childVariable+"="+says), l.Env()...)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return child{cmd.Process.Pid, func() {
		if err := input.Close(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}}
}

func listen(t *testing.T, watchdog time.Duration) (*systemd.Listener, *clocktesting.FakeClock) {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l, err := systemd.Listen(watchdog, clock)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l, clock
}

func isReady(l *systemd.Listener) bool {
	select {
	case <-l.Ready():
		return true
	default:
		return false
	}
}

// stands waits until a child has been heard, and returns why it stands still after the time.
func stands(t *testing.T, l *systemd.Listener, clock *clocktesting.FakeClock, pid int) string {
	t.Helper()
	reason := ""
	eventually.That(t, "the child is heard", func() bool {
		clock.Step(time.Minute)
		if err := l.Stands(pid); err != nil {
			reason = err.Error()
		}
		return reason != ""
	})
	return reason
}

func TestAParentHearsItsChildren(t *testing.T) {
	l, clock := listen(t, time.Minute)
	// A descriptor that a child wants to be stored is dropped, and what follows is heard.
	first := startChild(t, l, "store alive")
	defer first.end()
	if got := stands(t, l, clock, first.pid); !strings.Contains(got, "that it works") {
		t.Errorf("a child that reports no longer: %q", got)
	}
	if err := l.Stands(first.pid + 1); err != nil {
		t.Errorf("a child that has not reported: %v", err)
	}
	if isReady(l) {
		t.Error("it is ready, and has not said so")
	}
	next := startChild(t, l, "ready alive")
	defer next.end()
	eventually.That(t, "the next one is ready", func() bool { return isReady(l) })
	stands(t, l, clock, next.pid)
	if err := l.Stands(first.pid); err != nil {
		t.Errorf("the child before: %v", err)
	}
}

func TestAChildThatReportsStandsNotStill(t *testing.T) {
	l, clock := listen(t, time.Minute)
	one := startChild(t, l, "alive ready")
	defer one.end()
	eventually.That(t, "it is ready", func() bool { return isReady(l) })
	for after, want := range map[time.Duration]bool{0: false, 10 * time.Second: false, 11 * time.Second: true} {
		clock.SetTime(time.Unix(1000, 0).Add(after))
		if err := l.Stands(one.pid); (err != nil) != want {
			t.Errorf("after %v: %v", after, err)
		}
	}
}

// TestAMessageOfAnotherProcessIsDropped: this process is no child of itself.
func TestAMessageOfAnotherProcessIsDropped(t *testing.T) {
	l, clock := listen(t, time.Minute)
	for _, variable := range l.Env() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	notifier := systemd.Take()
	notifier.Ready(slog.Default())
	notifier.Alive(slog.Default())
	// The messages are read in order.
	one := startChild(t, l, "alive")
	defer one.end()
	stands(t, l, clock, one.pid)
	if err := l.Stands(os.Getpid()); err != nil || isReady(l) {
		t.Errorf("the message of another process counts: %v", err)
	}
}

// TestAChildThatNeverReportsIsNotWatched, as one of a version that says only that it is ready.
func TestAChildThatNeverReportsIsNotWatched(t *testing.T) {
	l, clock := listen(t, time.Minute)
	one := startChild(t, l, "ready")
	defer one.end()
	eventually.That(t, "it is ready", func() bool { return isReady(l) })
	clock.Step(time.Hour)
	if err := l.Stands(one.pid); err != nil {
		t.Error(err)
	}
}

// TestAChildThatSendsNothingStandsStill: it was stopped before its first message, say. One that has sent a message does
// not, whether that was before its start was noted or after, and nor does a program that is not Quartet's, whose start
// is not noted.
func TestAChildThatSendsNothingStandsStill(t *testing.T) {
	l, clock := listen(t, time.Minute)
	early := startChild(t, l, "ready")
	defer early.end()
	eventually.That(t, "it is ready", func() bool { return isReady(l) })
	l.Started(early.pid)
	clock.Step(time.Hour)
	if err := l.Stands(early.pid); err != nil {
		t.Errorf("a child that was ready before its start was noted: %v", err)
	}

	quiet := startChild(t, l, "nothing")
	defer quiet.end()
	clock.Step(time.Hour)
	if err := l.Stands(quiet.pid); err != nil {
		t.Errorf("a child whose start is not noted: %v", err)
	}
	l.Started(quiet.pid)
	clock.Step(2 * time.Minute)
	if err := l.Stands(quiet.pid); err != nil {
		t.Errorf("a child that has just started: %v", err)
	}
	clock.Step(time.Second)
	if err := l.Stands(quiet.pid); err == nil || err.Error() != "it has reported nothing since its start 2m1s ago" {
		t.Errorf("a child that has sent nothing: %v", err)
	}

	late := startChild(t, l, "alive")
	defer late.end()
	l.Started(late.pid)
	eventually.That(t, "a child that has reported, and does so no longer, stands still", func() bool {
		clock.Step(time.Minute)
		err := l.Stands(late.pid)
		return err != nil && strings.Contains(err.Error(), "it has not reported for")
	})
}

// TestNoChildStandsStillForAParentThatDoesNotListen has one child that has reported and one that is started later.
func TestNoChildStandsStillForAParentThatDoesNotListen(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l, err := systemd.Listen(time.Minute, clock)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	one := startChild(t, l, "alive ready")
	defer one.end()
	eventually.That(t, "it is ready", func() bool { return isReady(l) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	later := one.pid + 1
	l.Started(later)
	clock.Step(time.Hour)
	for _, pid := range []int{one.pid, later} {
		if err := l.Stands(pid); err != nil {
			t.Errorf("child %d: %v", pid, err)
		}
	}
}

func TestAChildIsAskedForReportsOnlyWithAWatchdog(t *testing.T) {
	l, _ := listen(t, 0)
	if env := l.Env(); len(env) != 1 || !strings.HasPrefix(env[0], "NOTIFY_SOCKET=@") {
		t.Errorf("without a watchdog: %q", env)
	}
	l, _ = listen(t, 30*time.Second)
	if env := l.Env(); len(env) != 2 || env[1] != "WATCHDOG_USEC=30000000" {
		t.Errorf("with a watchdog: %q", env)
	}
}
