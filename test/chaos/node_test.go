package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
)

// testNode is a node of its own: state directory, runtime and port.
type testNode struct {
	layout  layout.Layout
	port    string
	quartet string
}

// startNode starts a node and takes it down when the test ends. The logs of a test that failed stay.
func startNode(t *testing.T) *testNode {
	t.Helper()
	bin := os.Getenv("QUARTET_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	require(t, os.Geteuid() == 0, "containers need root: run the tests as root")
	_, err := os.Stat(filepath.Join(bin, "containerd"))
	require(t, err == nil, "bin/containerd is missing: run 'make build' first")
	dir, err := os.MkdirTemp("", "quartet-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{layout: l, port: freePort(t), quartet: filepath.Join(bin, "quartet")}
	t.Cleanup(func() { n.stop(t) })
	if out, err := n.command(t.Context(), "up", "--detach", "--read-only-port", n.port); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return n
}

// require skips a test when the machine lacks something, or fails it with CI=true, so that a green run has really run.
func require(t *testing.T, ok bool, reason string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("CI") == "true":
		t.Fatal(reason)
	default:
		t.Skip(reason)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err := errors.Join(err, listener.Close()); err != nil {
		t.Fatal(err)
	}
	return port
}

func (n *testNode) stop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if out, err := n.command(ctx, "down"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if t.Failed() {
		kept, err := os.MkdirTemp("", "quartet-chaos-logs-")
		if err == nil {
			err = os.CopyFS(filepath.Join(kept, "logs"), os.DirFS(n.layout.Logs()))
		}
		t.Logf("the node's logs are in %s (error %v)", kept, err)
	}
	if err := os.RemoveAll(n.layout.StateDir()); err != nil {
		t.Error(err)
	}
}

func (n *testNode) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.quartet, append(args, "--state-dir", n.layout.StateDir())...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("quartet %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// pods asks the read-only API.
func (n *testNode) pods(ctx context.Context) ([]v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+n.port+"/pods", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/pods: %s", resp.Status)
	}
	var list v1.PodList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("/pods: %w", err)
	}
	return list.Items, nil
}

// kill ends a process of the node by SIGKILL. One that does not run at this moment is left as it is.
func (n *testNode) kill(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(n.layout.PIDFile(name))
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	id, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatalf("the pid file of %s: %v", name, err)
	}
	// The file outlives the process for a moment, in which the number may become another's.
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id)); err != nil || !strings.Contains(string(line), n.layout.StateDir()) {
		return
	}
	if err := syscall.Kill(id, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatalf("kill %s: %v", name, err)
	}
}
