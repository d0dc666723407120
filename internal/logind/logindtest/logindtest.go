// Package logindtest is a fake logind on a private D-Bus for tests. The real one is used in test/systemdhost.
package logindtest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"

	"github.com/quartet-node/quartet/test/require"
)

const (
	name    = "org.freedesktop.login1"
	path    = dbus.ObjectPath("/org/freedesktop/login1")
	manager = name + ".Manager"
	// prepare is the signal that a shutdown begins or is canceled.
	prepare = manager + ".PrepareForShutdown"
	// timeout bounds the connection to a bus.
	timeout = time.Minute
)

// StartBus starts a D-Bus that permits everything, and returns its address. Without dbus-daemon it skips the test, or
// fails it if CI=true.
func StartBus(t testing.TB) (address string) {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	require.NoError(t, err)
	dir := t.TempDir()
	address = "unix:path=" + filepath.Join(dir, "bus")
	config := filepath.Join(dir, "bus.conf")
	text := `<busconfig><listen>` + address + `</listen><policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(
		t.Context(),
		program,
		"--config-file="+config,
		"--nofork",
		"--nopidfile",
		"--print-address=1",
	)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })                 // killed when the test's context ended
	if _, err := out.Read(make([]byte, 1)); err != nil { // it prints its address when it is ready
		t.Fatal(err)
	}
	return address
}

// Connect connects to a bus, until the test ends.
func Connect(t testing.TB, address string) *dbus.Conn {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // the connection ends with this context
	late := time.AfterFunc(timeout, cancel)
	conn, err := dbus.Connect(address, dbus.WithContext(ctx))
	late.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close() // it may be closed already
		cancel()
	})
	return conn
}

// Logind is a fake logind.
type Logind struct {
	// Bus is its connection.
	Bus   *dbus.Conn
	props *prop.Properties

	mu     sync.Mutex
	calls  []string
	pipes  []*os.File
	refuse bool
}

// Start starts a fake logind on a bus. delay is its maximum delay.
func Start(t testing.TB, address string, delay time.Duration) *Logind {
	t.Helper()
	l := &Logind{Bus: Connect(t, address)}
	var err error
	maxDelay := uint64(delay.Microseconds()) //nolint:gosec // it is not negative
	l.props, err = prop.Export(l.Bus, path, prop.Map{manager: {
		"InhibitDelayMaxUSec":  {Value: maxDelay, Emit: prop.EmitFalse},
		"PreparingForShutdown": {Value: false, Emit: prop.EmitFalse},
	}})
	if err = errors.Join(err, l.Bus.ExportMethodTable(map[string]any{"Inhibit": l.inhibit}, path, manager)); err != nil {
		t.Fatal(err)
	}
	if reply, err := l.Bus.RequestName(
		name,
		dbus.NameFlagDoNotQueue,
	); err != nil ||
		reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("the name of logind: %v, %v", reply, err)
	}
	return l
}

// inhibit is the method Inhibit.
func (l *Logind) inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse {
		return 0, dbus.NewError(
			name+".OperationInProgress",
			[]any{"The operation inhibition has been requested for is already running"},
		)
	}
	l.calls = append(l.calls, strings.Join([]string{what, who, why, mode}, "|"))
	read, write, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.pipes = append(l.pipes, read, write) // kept open, because the garbage collector would close them
	return dbus.UnixFD(write.Fd()), nil    //nolint:gosec // descriptors are small
}

// Asked returns the requested locks, each as WHAT|WHO|WHY|MODE.
func (l *Logind) Asked() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.calls...)
}

// Refuse refuses further locks, as during a shutdown.
func (l *Logind) Refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = true
}

// Prepare announces or cancels a shutdown.
func (l *Logind) Prepare(t testing.TB, comes bool) {
	t.Helper()
	l.props.SetMust(manager, "PreparingForShutdown", comes)
	Emit(t, l.Bus, comes)
}

// Emit sends the signal for a beginning or canceled shutdown from a connection.
func Emit(t testing.TB, from *dbus.Conn, comes bool) {
	t.Helper()
	if err := from.Emit(path, prepare, comes); err != nil {
		t.Fatal(err)
	}
}

// ReadsOnHangup has systemd's manager on the bus of this logind, too: a request to send SIGHUP to logind has it take
// its maximum delay from a drop-in file.
func (l *Logind) ReadsOnHangup(t testing.TB, file string) {
	t.Helper()
	const systemd = "org.freedesktop.systemd1"
	hangup := func(unit, whom string, signal int32) *dbus.Error {
		if unit != "systemd-logind.service" || whom != "main" || signal != 1 {
			return dbus.NewError(systemd+".NoSuchUnit", []any{unit, whom, signal})
		}
		content, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			return dbus.MakeFailedError(err)
		}
		_, text, _ := strings.Cut(string(content), "InhibitDelayMaxSec=")
		seconds, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
		if err != nil {
			return dbus.MakeFailedError(err)
		}
		l.props.SetMust(manager, "InhibitDelayMaxUSec", seconds*uint64(time.Second/time.Microsecond))
		return nil
	}
	err := l.Bus.ExportMethodTable(map[string]any{"KillUnit": hangup}, "/org/freedesktop/systemd1", systemd+".Manager")
	if err == nil {
		_, err = l.Bus.RequestName(systemd, dbus.NameFlagDoNotQueue)
	}
	if err != nil {
		t.Fatal(err)
	}
}
