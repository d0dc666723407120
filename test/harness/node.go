package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/process"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/livenode"
)

const (
	// nodeName is the node's name: a static pod's name ends with it.
	nodeName = "node"
	// startTimeout bounds the start of a node, which takes about a second.
	startTimeout = time.Minute
	// stopPatience is a little more than the time that the node gives its services.
	stopPatience = 20 * time.Second
	// logTail is the number of bytes of a log that a failed test shows.
	logTail = 32 << 10
)

// Node is `quartet node` with its four services on a real runtime.
type Node struct {
	// Containerd is the runtime.
	Containerd *Containerd
	// Layout has the node's paths and addresses, for example Layout.Address(layout.PLEG).
	Layout layout.Layout
	// Manifests is the directory of the static pods.
	Manifests string
	// URL is the address of the read-only API, for example for URL + "/pods".
	URL string
	// LogFile is the log of the four services and their supervisor.
	LogFile string

	bin string
	// wrap changes the command before it is started; nil for none.
	wrap func(*exec.Cmd)
	// pid is that of the started `quartet node`; 0 before the first start.
	pid int
}

// StartNode starts `quartet node` with directories of its own on a runtime, waits until /healthz answers, and stops it
// when the test ends.
func StartNode(t testing.TB, c *Containerd) *Node {
	t.Helper()
	return StartNodeAs(t, c, nil)
}

// StartNodeAs is StartNode with a function that changes the command before each start; nil for none.
func StartNodeAs(t testing.TB, c *Containerd, wrap func(*exec.Cmd)) *Node {
	t.Helper()
	return StartNodeIn(t, c, filepath.Join(c.StateDir, nodeName), wrap)
}

// StartNodeIn is StartNodeAs with a state directory.
func StartNodeIn(t testing.TB, c *Containerd, stateDir string, wrap func(*exec.Cmd)) *Node {
	t.Helper()
	bin := BinDir(t)
	for _, name := range append([]layout.Service{"quartet"}, layout.Services()...) {
		_, err := os.Stat(filepath.Join(bin, string(name)))
		if err != nil {
			err = fmt.Errorf("%w: run make build", err)
		}
		Require(t, err)
	}
	l, err := layout.New(stateDir)
	if err != nil {
		t.Fatal(err)
	}
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	// With a kubeconfig the node serves its API, and packages are tested in parallel.
	api, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{
		Containerd: c, Layout: l, Manifests: l.Manifests(), URL: fmt.Sprintf("http://127.0.0.1:%d", port),
		LogFile: filepath.Join(c.StateDir, nodeName+".log"), bin: bin, wrap: wrap,
	}
	for _, dir := range []string{l.StateDir(), n.Manifests, l.PodLogs()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: %q
containerRuntimeEndpoint: %q
podLogsDir: %q
cgroupRoot: %q
address: 127.0.0.1
port: %d
readOnlyPort: %d
healthzPort: 0
%s`, n.Manifests, c.Endpoint, l.PodLogs(), c.Layout.CgroupRoot(), api, port, livenode.AnyMachine)
	if err := os.WriteFile(l.ConfigFile(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Stop(t)
		if t.Failed() {
			n.showLog(t)
		}
	})
	n.Start(t)
	return n
}

// Start starts the node, also again after Stop, and waits until /healthz answers.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	ended := n.Spawn(t)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	eventually.In(ctx, t, "the node answers on "+n.URL+"/healthz", func() bool {
		select {
		case err := <-ended:
			n.showLog(t)
			t.Fatalf("harness: the node has ended: %v", err)
		default:
		}
		return n.Healthy(ctx)
	})
}

// Healthy reports whether /healthz says ok.
func (n *Node) Healthy(ctx context.Context) bool {
	body, err := n.get(ctx, "/healthz")
	return err == nil && strings.TrimSpace(string(body)) == "ok"
}

// Spawn starts the node and waits for nothing. The channel receives the error of its end.
func (n *Node) Spawn(t testing.TB) (ended <-chan error) {
	t.Helper()
	log, err := os.OpenFile(n.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(n.bin, "quartet"), "node",
		"--config="+n.Layout.ConfigFile(), "--state-dir="+n.Layout.StateDir(),
		"--hostname-override="+nodeName)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if n.wrap != nil {
		n.wrap(cmd)
	}
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		t.Fatalf("harness: starting the node: %v", err)
	}
	n.pid = cmd.Process.Pid
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()
	return end
}

// Stop ends the node by SIGTERM and waits until its processes have ended; the pods keep running. It is a no-op for a
// node that is not running.
func (n *Node) Stop(t testing.TB) {
	t.Helper()
	pid := n.PID("quartet")
	if pid == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := process.End(ctx, pid, stopPatience); err != nil {
		t.Errorf("harness: stopping the node: %v", err)
	}
}

// PID returns the process id of a service or of "quartet", their supervisor; 0 when it is not running.
func (n *Node) PID(name layout.Service) int {
	pid := n.pid
	if name != "quartet" {
		content, err := os.ReadFile(n.Layout.PIDFile(string(name)))
		if err != nil {
			return 0
		}
		if pid, err = strconv.Atoi(strings.TrimSpace(string(content))); err != nil {
			return 0
		}
	}
	if pid == 0 || unix.Kill(pid, 0) != nil {
		return 0
	}
	return pid
}

// WriteManifest puts a manifest into the manifests directory under a name, by a rename, as a careful editor does.
func (n *Node) WriteManifest(t testing.TB, name, content string) {
	t.Helper()
	tmp := filepath.Join(n.Manifests, "."+name)
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(n.Manifests, name)); err != nil {
		t.Fatal(err)
	}
}

// Pods returns the pods of /pods.
func (n *Node) Pods(ctx context.Context) ([]corev1.Pod, error) {
	body, err := n.get(ctx, "/pods")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("reading /pods: %w", err)
	}
	return list.Items, nil
}

// Pod returns the pod of a manifest by its name (without the node's name behind it), or nil when /pods lacks it or does
// not answer.
func (n *Node) Pod(ctx context.Context, name string) *corev1.Pod {
	pods, err := n.Pods(ctx)
	if err != nil {
		return nil
	}
	for i := range pods {
		if pods[i].Name == name+"-"+nodeName {
			return &pods[i]
		}
	}
	return nil
}

// Ready reports whether a pod is Ready.
func Ready(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (n *Node) get(ctx context.Context, path string) (body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.URL+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

func (n *Node) showLog(t testing.TB) {
	t.Helper()
	log, err := os.ReadFile(n.LogFile)
	if err != nil {
		t.Logf("harness: %v", err)
		return
	}
	t.Logf("harness: the end of the node's log:\n%s", log[max(0, len(log)-logTail):])
}
