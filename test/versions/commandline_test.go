package versions

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/livenode"
)

// TestTheCommandLinesReachEachOthersNodes: both versions' command lines ask a node of this commit, then a node that the
// last release has started, with processes of the release and of this commit. The sockets of the two are not at the
// same places. The pods run on, also when the node of this commit was killed.
func TestTheCommandLinesReachEachOthersNodes(t *testing.T) {
	n := startNode(t)
	n.place(t, "reached", "one")
	before := containers(n.await(t, "reached", "is Ready", livenode.Ready))
	n.asked(t, "a node of this commit")

	n.killAll(t)
	n.command(t, released)
	n.asked(t, "a node of the last release")
	for _, service := range layout.Services() {
		n.exchange(t, service, current)
	}
	n.asked(t, "processes of this commit that the last release has started")

	if err := n.StopServices(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.command(t, current)
	n.asked(t, "a node of this commit again")
	if after := containers(n.await(t, "reached", "is Ready", livenode.Ready)); after != before {
		t.Errorf("the containers went from %s to %s", before, after)
	}
}

// killAll kills the four processes and their supervisor, which leaves their sockets.
func (n *mixedNode) killAll(t *testing.T) {
	t.Helper()
	pids := map[layout.Service]int{}
	// The supervisor is the first, because it would start the others again. The kernel may kill them with it.
	names := append([]layout.Service{"quartet"}, layout.Services()...)
	for _, name := range names {
		pid, err := n.PID(string(name))
		if err != nil {
			t.Fatal(err)
		}
		pids[name] = pid
	}
	for _, name := range names {
		if err := syscall.Kill(pids[name], syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatalf("kill %s: %v", name, err)
		}
	}
	for name, pid := range pids {
		eventually.That(t, fmt.Sprintf("%s has ended", name), func() bool {
			return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
		})
	}
}

// command starts the node with the command line and the services of a version.
func (n *mixedNode) command(t *testing.T, v version) {
	t.Helper()
	for _, name := range append(layout.Services(), "quartet") {
		n.install(t, name, v)
	}
	if err := n.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// asked checks that both versions' command lines get answers of each of the four services.
func (n *mixedNode) asked(t *testing.T, what string) {
	t.Helper()
	for v, dir := range n.programs {
		for _, question := range []struct{ command, want string }{
			{"get sources", "file"},
			{"get pods -n versions", "reached"},
			{"get node", "Ready"},
			{"events -n versions --types Lifecycle", "reached"},
			{"metrics configmux", "quartet_build_info"},
			{"metrics pleg", "quartet_build_info"},
			{"metrics syncloop", "quartet_build_info"},
			{"metrics nodestatus", "quartet_build_info"},
		} {
			answer := ""
			eventually.That(t, fmt.Sprintf("%s: the command line of %s answers %q", what, v, question.command), func() bool {
				var err error
				answer, err = ask(t.Context(), filepath.Join(dir, "quartet"), n.Layout.StateDir(), question.command)
				return err == nil && strings.Contains(answer, question.want)
			})
		}
	}
}

func ask(ctx context.Context, program, stateDir, command string) (string, error) {
	args := append(strings.Fields(command), "--state-dir", stateDir)
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	return string(out), err
}
