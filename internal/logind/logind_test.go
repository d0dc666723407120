package logind_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/internal/logind"
	"github.com/quartet-node/quartet/internal/logind/logindtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T, address string) *logind.Conn {
	t.Helper()
	conn, err := logind.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func wantEvent(t *testing.T, conn *logind.Conn, want logind.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got, err := conn.Next(ctx); err != nil || got != want {
		t.Fatalf("got event %d, %v, want %d", got, err, want)
	}
}

func wantPreparing(t *testing.T, conn *logind.Conn, want bool) {
	t.Helper()
	if preparing, err := conn.PreparingForShutdown(t.Context()); err != nil || preparing != want {
		t.Errorf("preparing %v, %v, want %v", preparing, err, want)
	}
}

func TestLogindIsAskedAndHeard(t *testing.T) {
	address := logindtest.StartBus(t)
	fake := logindtest.Start(t, address, 5*time.Second)
	conn := connect(t, address)
	ctx := t.Context()
	if delay, err := conn.InhibitDelay(ctx); err != nil || delay != 5*time.Second {
		t.Errorf("it waits %v, %v, want %v", delay, err, 5*time.Second)
	}
	wantPreparing(t, conn, false)
	lock, err := conn.Inhibit(ctx, "who", "why")
	if err != nil || !slices.Equal(fake.Asked(), []string{"shutdown|who|why|delay"}) {
		t.Fatalf("asked for %s, %v, want %s", fake.Asked(), err, []string{"shutdown|who|why|delay"})
	}
	// Another client of the bus announces a shutdown. It is not trusted.
	logindtest.Emit(t, logindtest.Connect(t, address), true)
	fake.Prepare(t, true)
	wantEvent(t, conn, logind.Preparing)
	wantPreparing(t, conn, true)
	fake.Prepare(t, false)
	wantEvent(t, conn, logind.CalledOff)
	fake.Refuse()
	if _, err := conn.Inhibit(ctx, "who", "why"); !errors.Is(err, logind.ErrGoingDown) {
		t.Errorf("a lock in vain: %v, want %v", err, logind.ErrGoingDown)
	}
	// A lock survives the loss of the connection.
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
	if _, err := conn.Next(ctx); !errors.Is(err, logind.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestAnotherLogindIsNoticed(t *testing.T) {
	address := logindtest.StartBus(t)
	first := logindtest.Start(t, address, time.Second)
	conn := connect(t, address)
	if err := first.Bus.Close(); err != nil {
		t.Fatal(err)
	}
	second := logindtest.Start(t, address, time.Second)
	wantEvent(t, conn, logind.Restarted)
	second.Prepare(t, true)
	wantEvent(t, conn, logind.Preparing)
}

func TestWithoutABusOrALogindConnectFails(t *testing.T) {
	if _, err := logind.Connect(
		t.Context(),
		"unix:path="+filepath.Join(t.TempDir(), "none"),
	); err == nil ||
		!strings.Contains(err.Error(), "D-Bus") {
		t.Errorf("without a bus: %v", err)
	}
	if _, err := logind.Connect(
		t.Context(),
		logindtest.StartBus(t),
	); err == nil ||
		!strings.Contains(err.Error(), "InhibitDelayMaxUSec") {
		t.Errorf("without a logind: %v", err)
	}
}

func TestTheDropInFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "logind.conf.d", "99-quartet.conf")
	if err := logind.WriteDropIn(file, 90500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil || !strings.HasSuffix(string(data), "\n[Login]\nInhibitDelayMaxSec=91\n") {
		t.Errorf("the file has %q, %v, want text ending with %q", data, err, "\n[Login]\nInhibitDelayMaxSec=91\n")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("logind could not read it: %v, %v", info, err)
	}
}
