package bundle

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quartet-node/quartet/test/require"
)

// runAs starts a process with the command line of our containerd, and returns it when it runs.
func runAs(t *testing.T, b *Bundle, namespaces uintptr) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh")
	cmd.Args = []string{b.binary("containerd"), "-c", "echo up; read line", b.configFile()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // it may have been ended by a signal
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// TestTheRuntimeOfAContainerIsNotOurs checks a containerd with our command line in a PID namespace of its own, as that
// of a node in a container with the same paths.
func TestTheRuntimeOfAContainerIsNotOurs(t *testing.T) {
	require.Root(t, "making a PID namespace")
	b := New(Config{Layout: layoutAt(t, t.TempDir()), Logger: slog.New(slog.DiscardHandler)})
	runAs(t, b, syscall.CLONE_NEWPID)
	if pid := b.PID(); pid != 0 {
		t.Errorf("b.PID() = %d of another PID namespace, want 0", pid)
	}
	ours := runAs(t, b, 0)
	if pid := b.PID(); pid != ours.Process.Pid {
		t.Errorf("b.PID() = %d, want %d", pid, ours.Process.Pid)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if pid := b.PID(); pid != 0 {
		t.Errorf("b.PID() = %d after it was stopped, want 0", pid)
	}
}

// TestAStartWaitsForTheProcessThatItHasStarted has a containerd that is not recognized by its command line, as a real
// one while the kernel loads it.
func TestAStartWaitsForTheProcessThatItHasStarted(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		ends   bool
	}{
		"it runs": {"exec sleep 60", false},
		"it ends": {"echo cannot start; exit 1", true},
	} {
		t.Run(name, func(t *testing.T) {
			b := New(Config{Layout: layoutAt(t, t.TempDir()), Logger: slog.New(slog.DiscardHandler)})
			write(t, b.binDir(), "containerd", "#!/bin/sh\n"+test.script+"\n")
			if err := errors.Join(os.Chmod(b.binary("containerd"), 0o700), os.MkdirAll(filepath.Dir(b.logFile()), 0o700),
				os.MkdirAll(filepath.Dir(b.pidFile()), 0o700)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if !test.ends {
				time.AfterFunc(200*time.Millisecond, cancel)
			}
			err := b.Start(ctx)
			t.Cleanup(func() { _ = syscall.Kill(b.savedPID(), syscall.SIGKILL) }) // it may have ended
			if ended := err != nil && strings.Contains(err.Error(), "containerd has ended"); ended != test.ends {
				t.Errorf("Start returns %v, want the end of containerd: %t", err, test.ends)
			}
			if test.ends != strings.Contains(err.Error(), "cannot start") {
				t.Errorf("Start returns %v, want the text of its log: %t", err, test.ends)
			}
		})
	}
}
