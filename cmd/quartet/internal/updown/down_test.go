package updown

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quartet-node/quartet/internal/process"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/require"
)

// start starts a program that prints a line when it is ready, and returns its process.
func start(t *testing.T, namespaces uintptr, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // the test has checked how it ended
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// holding starts a process that holds the lock of pleg, whose file then names another holder.
func holding(t *testing.T, dir string, namespaces uintptr, named statedir.Holder) *exec.Cmd {
	t.Helper()
	lock := filepath.Join(dir, "pleg.lock")
	cmd := start(t, namespaces, "flock", "--no-fork", "-x", lock, "/bin/sh", "-c", "echo up; exec sleep 1000")
	text, err := json.Marshal(named)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lock, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func runs(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	ended, err := process.Open(cmd.Process.Pid, func() error { return nil })
	if err != nil {
		return false
	}
	if err := ended.Close(); err != nil {
		t.Error(err)
	}
	return true
}

func downOf(t *testing.T, dir string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := down(context.Background(), downOptions{stateDir: dir, keepPods: true}, &out, &out)
	return out.String(), err
}

// TestDownEndsTheHolderOfALock checks that down ends the process that holds the lock, and not the one whose number is
// in the file. The file is out of date if its holder could not write it.
func TestDownEndsTheHolderOfALock(t *testing.T) {
	dir := t.TempDir()
	other := start(t, 0, "/bin/sh", "-c", "echo up; exec sleep 1000")
	holder := holding(t, dir, 0, statedir.Holder{Service: "pleg", PID: other.Process.Pid})
	out, err := downOf(t, dir)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !runs(t, other) {
		t.Error("a process that holds no lock was ended")
	}
	if runs(t, holder) {
		t.Error("the process that holds the lock still runs")
	}
}

// TestDownEndsNoProcessOfAnotherPIDNamespace checks the lock of a node in a container, whose process IDs are those of
// other processes on the machine.
func TestDownEndsNoProcessOfAnotherPIDNamespace(t *testing.T) {
	require.Root(t, "making a PID namespace")
	dir := t.TempDir()
	other := start(t, 0, "/bin/sh", "-c", "echo up; exec sleep 1000")
	holder := holding(t, dir, syscall.CLONE_NEWPID, statedir.Holder{
		Service: "pleg", PID: other.Process.Pid, Container: "3f2a9c0d1e4b", PIDNamespace: "pid:[1]", Started: 1, Boot: "x",
	})
	out, err := downOf(t, dir)
	if err == nil || !strings.Contains(err.Error(), "another PID namespace") ||
		!strings.Contains(err.Error(), "docker stop 3f2a9c0d1e4b") {
		t.Errorf("down() = %v, want an error that names the remedy\n%s", err, out)
	}
	if !runs(t, other) || !runs(t, holder) {
		t.Errorf("the other process runs: %t; the holder runs: %t; want both", runs(t, other), runs(t, holder))
	}
}

// TestDownGoesOnIfAPIDFileStays checks that a PID file, which is for people, keeps no part from being stopped.
func TestDownGoesOnIfAPIDFileStays(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "configmux.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "run", "configmux.pid", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	holder := holding(t, dir, 0, statedir.Holder{Service: "pleg"})
	out, err := downOf(t, dir)
	if err != nil || !strings.Contains(out, "configmux.pid") {
		t.Errorf("down() = %v, want none and a note that names the file\n%s", err, out)
	}
	if runs(t, holder) {
		t.Error("a process after the one with the PID file still runs")
	}
}
