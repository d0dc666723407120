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

// testNode is a node of its own: state directory, runtime and port.
type testNode struct{ *livenode.Node }

// startNode starts a node and takes it down when the test ends. The logs of a test that failed stay.
func startNode(t *testing.T) *testNode {
	t.Helper()
	if reason := livenode.CannotRun(livenode.Bin()); reason != nil {
		if os.Getenv("CI") == "true" { // a green run has really run
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

// listPods asks the node for its pods, but not for ever: it may be dead.
func (n *testNode) listPods(ctx context.Context) ([]v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return n.Pods(ctx)
}

// kill ends a process of the node by SIGKILL. One that does not run at this moment is left as it is.
func (n *testNode) kill(t *testing.T, name string) {
	t.Helper()
	id, err := n.PID(name)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	// The file outlives the process for a moment, in which the number may become another's.
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id)); err != nil || !strings.Contains(string(line), n.Layout.StateDir()) {
		return
	}
	if err := syscall.Kill(id, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatalf("kill %s: %v", name, err)
	}
}
