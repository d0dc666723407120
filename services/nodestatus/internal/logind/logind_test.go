package logind_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/services/nodestatus/internal/logind"
	"github.com/quartet-node/quartet/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	name = "org.freedesktop.login1"
	path = dbus.ObjectPath("/org/freedesktop/login1")
)

// startBus starts a D-Bus of the test's own, to which everybody may say everything, and returns its address.
func startBus(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	require.NoError(t, err)
	dir := t.TempDir()
	address := "unix:path=" + filepath.Join(dir, "bus")
	config := filepath.Join(dir, "bus.conf")
	text := `<busconfig><listen>` + address + `</listen><policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--config-file="+config, "--nofork", "--nopidfile", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil { // it says its address when it serves
		t.Fatal(err)
	}
	return address
}

// fake is a logind with one inhibitor at most.
type fake struct {
	bus   *dbus.Conn
	props *prop.Properties

	mu     sync.Mutex
	asked  []string
	pipes  []*os.File
	refuse bool
}

// Inhibit is logind's.
func (f *fake) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse {
		return 0, dbus.NewError("org.freedesktop.login1.OperationInProgress", []any{"The operation inhibition has been requested for is already running"})
	}
	f.asked = append(f.asked, strings.Join([]string{what, who, why, mode}, "|"))
	read, write, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	f.pipes = append(f.pipes, read, write) // or they would be closed when they are forgotten
	return dbus.UnixFD(write.Fd()), nil
}

// startLogind has a logind at a bus.
func startLogind(t *testing.T, address string) *fake {
	t.Helper()
	conn := connectTo(t, address)
	f := &fake{bus: conn}
	var err error
	f.props, err = prop.Export(conn, path, prop.Map{name + ".Manager": {
		"InhibitDelayMaxUSec":  {Value: uint64(5_000_000), Emit: prop.EmitFalse},
		"PreparingForShutdown": {Value: false, Emit: prop.EmitFalse},
	}})
	if err = errors.Join(err, conn.Export(f, path, name+".Manager")); err != nil {
		t.Fatal(err)
	}
	if reply, err := conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("the name of logind: %v, %v", reply, err)
	}
	return f
}

func connectTo(t *testing.T, address string) *dbus.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	conn, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); cancel() })
	return conn
}

func connect(t *testing.T, address string) *logind.Conn {
	t.Helper()
	conn, err := logind.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func emit(t *testing.T, from *dbus.Conn, begins bool) {
	t.Helper()
	if err := from.Emit(path, name+".Manager.PrepareForShutdown", begins); err != nil {
		t.Fatal(err)
	}
}

func wantEvent(t *testing.T, conn *logind.Conn, want logind.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got, err := conn.Next(ctx); err != nil || got != want {
		t.Fatalf("got event %d, %v, want %d", got, err, want)
	}
}

func TestLogindIsAskedAndHeard(t *testing.T) {
	address := startBus(t)
	f := startLogind(t, address)
	conn := connect(t, address)
	ctx := t.Context()
	if delay, err := conn.InhibitDelay(ctx); err != nil || delay != 5*time.Second {
		t.Errorf("it waits %v, %v", delay, err)
	}
	if preparing, err := conn.PreparingForShutdown(ctx); err != nil || preparing {
		t.Errorf("preparing %v, %v", preparing, err)
	}
	lock, err := conn.Inhibit(ctx, "who", "why")
	f.mu.Lock()
	asked := fmt.Sprint(f.asked)
	f.refuse = true // from now on
	f.mu.Unlock()
	if err != nil || asked != "[shutdown|who|why|delay]" {
		t.Fatalf("asked for %s, %v", asked, err)
	}
	// Somebody else on the bus says that the machine goes down: that is nobody to believe.
	emit(t, connectTo(t, address), true)
	stranger := connectTo(t, address)
	if call := stranger.Object(":1.1", path).Call(name+".Manager.PrepareForShutdown", dbus.FlagNoReplyExpected, true); call.Err != nil {
		t.Fatal(call.Err)
	}
	f.props.SetMust(name+".Manager", "PreparingForShutdown", true)
	emit(t, f.bus, true)
	wantEvent(t, conn, logind.Preparing)
	if preparing, err := conn.PreparingForShutdown(ctx); err != nil || !preparing {
		t.Errorf("preparing %v, %v", preparing, err)
	}
	emit(t, f.bus, false)
	wantEvent(t, conn, logind.CalledOff)
	if _, err := conn.Inhibit(ctx, "who", "why"); !errors.Is(err, logind.ErrGoingDown) {
		t.Errorf("a lock in vain: %v", err)
	}
	// A lock outlives the connection, and is over when it is closed.
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
	address := startBus(t)
	first := startLogind(t, address)
	conn := connect(t, address)
	if err := first.bus.Close(); err != nil {
		t.Fatal(err)
	}
	second := startLogind(t, address)
	wantEvent(t, conn, logind.Restarted)
	emit(t, second.bus, true)
	wantEvent(t, conn, logind.Preparing)
}

func TestWithoutABusOrALogindConnectFails(t *testing.T) {
	if _, err := logind.Connect(t.Context(), "unix:path="+filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "D-Bus") {
		t.Errorf("without a bus: %v", err)
	}
	if _, err := logind.Connect(t.Context(), startBus(t)); err == nil || !strings.Contains(err.Error(), "InhibitDelayMaxUSec") {
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
		t.Errorf("the file has %q, %v", data, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("logind could not read it: %v, %v", info, err)
	}
}
