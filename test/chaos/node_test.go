package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

// testNode is a node with a state directory, runtime and port of its own.
type testNode struct{ *livenode.Node }

// startNode starts a node and removes it when the test ends. The logs of a failed test are kept.
func startNode(t *testing.T) *testNode {
	t.Helper()
	if reason := livenode.CannotRun(livenode.Bin()); reason != nil {
		if os.Getenv("CI") == "true" { // so that a green run has run the test
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	live, err := livenode.New(livenode.Bin(), "chaos")
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{live}
	t.Cleanup(func() { n.stop(t) })
	if err := n.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *testNode) stop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if t.Failed() {
		kept, err := os.MkdirTemp("", "quartet-chaos-logs-")
		if err == nil {
			err = os.CopyFS(filepath.Join(kept, "logs"), os.DirFS(n.Layout.Logs()))
		}
		t.Logf("the node's logs are in %s (error %v)", kept, err)
	}
	if err := n.Remove(ctx); err != nil {
		t.Error(err)
	}
}

// listPods requests the node's pods with a time limit, because the node may be dead.
func (n *testNode) listPods(ctx context.Context) ([]v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return n.Pods(ctx)
}

// kill ends a process of the node by SIGKILL. It is a no-op for one that is not running.
func (n *testNode) kill(t *testing.T, name string) {
	t.Helper()
	if id := n.runs(t, name); id != 0 {
		if err := syscall.Kill(id, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatalf("kill %s: %v", name, err)
		}
	}
}

// runs returns the process ID of a process of the node; 0 if it does not run.
func (n *testNode) runs(t *testing.T, name string) int {
	t.Helper()
	id, err := n.PID(name)
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	// The file exists for a moment after the end of the process, and the process id may be reused by then.
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
	if err != nil || !strings.Contains(string(line), n.Layout.StateDir()) {
		return 0
	}
	return id
}
