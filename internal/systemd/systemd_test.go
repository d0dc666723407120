package systemd_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestSystemdIsNotified(t *testing.T) {
	for what, socket := range map[string]string{"a path": filepath.Join(t.TempDir(), "s"), "no file": fmt.Sprintf("@quartet-test-%d", os.Getpid())} {
		listener, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("NOTIFY_SOCKET", socket)
		notifier := systemd.Take()
		if left, found := os.LookupEnv("NOTIFY_SOCKET"); found {
			t.Errorf("%s: a child would find the socket %q", what, left)
		}
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		notifier.Ready(logger)
		notifier.Stopping(logger)
		for _, want := range []string{"READY=1", "STOPPING=1"} {
			message := make([]byte, 100)
			n, err := listener.Read(message)
			if err != nil || string(message[:n]) != want {
				t.Errorf("%s: systemd is told %q, %v; want %q", what, message[:n], err, want)
			}
		}
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		if log.Len() > 0 {
			t.Errorf("%s: the log has %s", what, &log)
		}
	}
}

// TestSystemdKnowsThatTheProcessIsAlive: a unit with WatchdogSec expects a message in time, other units none.
func TestSystemdKnowsThatTheProcessIsAlive(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	}()
	logger := slog.New(slog.DiscardHandler)
	t.Setenv("NOTIFY_SOCKET", socket)
	without := systemd.Take()
	without.Alive(logger)
	without.KeepAlive(t.Context(), clocktesting.NewFakeClock(time.Unix(0, 0)), logger)
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "30000000")
	notifier := systemd.Take()
	if left, found := os.LookupEnv("WATCHDOG_USEC"); found || notifier.Watchdog != 30*time.Second {
		t.Errorf("the watchdog is %v, want 30s; a child would find %q", notifier.Watchdog, left)
	}
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		notifier.KeepAlive(ctx, clock, logger)
	}()
	for range 3 { // at once, and after each half of the time
		message := make([]byte, 100)
		n, err := listener.Read(message)
		if err != nil || string(message[:n]) != "WATCHDOG=1" {
			t.Errorf("systemd is told %q, %v; want %q", message[:n], err, "WATCHDOG=1")
		}
		eventually.That(t, "it waits", clock.HasWaiters)
		clock.Step(15 * time.Second)
	}
	cancel()
	<-done
}

func TestWithoutSystemdNotifyIsANoOp(t *testing.T) {
	notifier := systemd.Take()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	notifier.Ready(logger)
	if log.Len() > 0 {
		t.Errorf("the log has %s", &log)
	}
	systemd.Notifier{Socket: filepath.Join(t.TempDir(), "gone")}.Ready(logger)
	if !strings.Contains(log.String(), "cannot notify the supervisor") || !strings.Contains(log.String(), "READY=1") {
		t.Errorf("that nobody takes the message is said as %s", &log)
	}
}
