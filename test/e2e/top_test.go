package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/require"
)

// TestTheNodeOnATerminal runs `quartet top` in tmux on 80 columns and 24 lines, beside a node of which pleg is stopped
// for a while.
func TestTheNodeOnATerminal(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		require.NoError(t, errors.New("tmux is missing: install the package tmux"))
	}
	const name, file = "watched", "watched.yaml"
	place(t, file, manifest(name, 1, "sleep"))
	t.Cleanup(func() { takeAway(t, file) })
	await(t, name, "Ready", ready)
	socket := filepath.Join(t.TempDir(), "tmux")
	tmux := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "tmux", append([]string{"-S", socket, "-f", "/dev/null"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%s: %v", out, err)
		}
		return string(out)
	}
	top := fmt.Sprintf("%s top --interval 500ms --state-dir %s", filepath.Join(harness.BinDir(t), "quartet"), node.Layout.StateDir())
	if out := tmux("new-session", "-d", "-x", "80", "-y", "24", top+"; echo ended; exec cat"); out != "" {
		t.Fatal(out)
	}
	defer tmux("kill-server")
	shows := func(what string, all ...string) {
		t.Helper()
		var screen string
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the screen of %s:\n%s", what, screen)
			}
		})
		awaitThat(t, what, func() bool {
			screen = tmux("capture-pane", "-p")
			for _, want := range all {
				if !strings.Contains(screen, want) {
					return false
				}
			}
			return true
		})
		for _, line := range strings.Split(screen, "\n") {
			if len([]rune(line)) > 80 {
				t.Errorf("%s: %q is wider than 80 columns", what, line)
			}
		}
	}
	shows("the overview", "[1 overview]", "configmux ", "pleg ", "syncloop ", "nodestatus ", " %", "Streams: 5 connected", "q end")
	tmux("send-keys", "4")
	shows("the pods", "[4 pods]", "RESTARTS", name, "Running")
	tmux("send-keys", "2")
	shows("the streams", "[2 streams]", "pod_updates", "lifecycle_events", "OVERFLOW")
	tmux("send-keys", "5")
	shows("the events", "[5 events]", "Started")
	tmux("send-keys", "1")
	pid, err := node.PID("pleg")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }() // once more does no harm
	shows("a stopped pleg beside the others", "[1 overview]", "does not answer", "syncloop ", " %")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	tmux("send-keys", "q")
	shows("its end, on the terminal as it was", "ended")
}
