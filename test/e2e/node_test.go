// Package e2e drives a whole node as a user would: the built binaries, the bundled containerd, manifests in a
// directory, the command line and the read-only API. Nothing in it reaches into a process.
package e2e

import (
	"bytes"
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

const (
	image = "quartet.local/hello:1"
	// patience is how long a test waits for what should take a second or two on a busy machine.
	patience = 60 * time.Second
	interval = 20 * time.Millisecond
)

// node is the one node that all tests of this package share; each uses pods of its own and removes them.
var node *testNode

type testNode struct {
	quartet string
	layout  layout.Layout
	env     []string
	port    string
	podsURL string
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if reason := cannotRun(); reason != "" {
		if os.Getenv("CI") == "true" {
			fmt.Fprintln(os.Stderr, "e2e:", reason)
			return 1
		}
		fmt.Println("e2e tests are skipped:", reason)
		return 0
	}
	stop, err := start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: start the node:", err)
		return 1
	}
	code := m.Run()
	if code != 0 {
		node.printLogs()
	}
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: stop the node:", err)
		return 1
	}
	return code
}

func bin() string {
	if dir := os.Getenv("QUARTET_BIN"); dir != "" {
		return dir
	}
	return filepath.Join("..", "..", "bin")
}

func cannotRun() string {
	if os.Geteuid() != 0 {
		return "containers need root: run them as root"
	}
	if _, err := os.Stat(filepath.Join(bin(), "containerd")); err != nil {
		return "bin/containerd is missing: run 'make build' first"
	}
	return ""
}

func start() (stop func() error, err error) {
	dir, err := os.MkdirTemp("", "quartet-e2e-")
	if err != nil {
		return nil, err
	}
	l, err := layout.New(dir)
	if err != nil {
		return nil, err
	}
	if err := startTraces(); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	node = &testNode{port: port, podsURL: "http://127.0.0.1:" + port + "/pods", quartet: filepath.Join(bin(), "quartet"), layout: l, env: append(os.Environ(),
		"OTEL_EXPORTER_OTLP_ENDPOINT="+traces.Endpoint(), "OTEL_BSP_SCHEDULE_DELAY=200")}
	if out, err := node.up(context.Background()); err != nil {
		node.printLogs()
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return func() error {
		out, err := node.command(context.Background(), "down")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return errors.Join(os.RemoveAll(dir), stopTraces())
	}, nil
}

// freePort finds a port that nothing listens on, so that the node stands beside any other on this machine.
func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	return port, errors.Join(err, listener.Close())
}

// command runs the command line against the node and returns what it printed.
func (n *testNode) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.quartet, append(args, "--state-dir", n.layout.StateDir())...)
	cmd.Env = n.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("quartet %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// up starts the node, and returns when it is healthy.
func (n *testNode) up(ctx context.Context) (string, error) {
	return n.command(ctx, "up", "--detach", "--read-only-port", n.port)
}

func (n *testNode) printLogs() {
	files, err := filepath.Glob(filepath.Join(n.layout.Logs(), "*.log"))
	if err != nil {
		return
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		const tail = 20_000
		fmt.Fprintf(os.Stderr, "---- %s\n%s\n", file, data[max(0, len(data)-tail):])
	}
}

// quartet runs the command line and fails the test when it fails.
func quartet(t *testing.T, args ...string) string {
	t.Helper()
	out, err := node.command(t.Context(), args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// place writes a manifest beside its place and renames it there, as editors do; it is taken away when the test ends.
func place(t *testing.T, file, manifest string) {
	t.Helper()
	dir := node.layout.Manifests()
	if err := os.WriteFile(filepath.Join(dir, "."+file), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "."+file), filepath.Join(dir, file)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { takeAway(t, file) })
}

func takeAway(t *testing.T, file string) {
	t.Helper()
	if err := os.Remove(filepath.Join(node.layout.Manifests(), file)); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// manifest is a pod of one container that runs the example program with args.
func manifest(name string, grace int, args ...string) string {
	quoted, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: e2e}
spec:
  terminationGracePeriodSeconds: %d
  containers:
  - {name: main, image: %q, args: %s}
`, name, grace, image, quoted)
}

// pods asks the read-only API.
func pods(ctx context.Context) ([]v1.Pod, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, node.podsURL, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", node.podsURL, resp.Status)
	}
	var list v1.PodList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// pod finds a pod by the name in its manifest; static pods have the node's name behind it.
func pod(ctx context.Context, name string) (*v1.Pod, error) {
	items, err := pods(ctx)
	if err != nil {
		return nil, err
	}
	for i := range items {
		if items[i].Namespace == "e2e" && strings.HasPrefix(items[i].Name, name+"-") {
			return &items[i], nil
		}
	}
	return nil, nil
}

// await polls until a pod is as it should be; what says in words what that is. A nil pod is one that /pods does not list.
func await(t *testing.T, name, what string, ok func(*v1.Pod) bool) *v1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var last *v1.Pod
	var lastErr error
	for {
		p, err := pod(ctx, name)
		if err == nil {
			last = p
			if ok(p) {
				return p
			}
		}
		if ctx.Err() == nil {
			lastErr = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("pod %s is not %s after %v; last error %v; last seen:\n%s", name, what, patience, lastErr, describe(last))
		case <-time.After(interval):
		}
	}
}

// awaitThat polls until a condition holds.
func awaitThat(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
		<-time.After(interval)
	}
}

func describe(p *v1.Pod) string {
	if p == nil {
		return "(no such pod)"
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(p.Status); err != nil {
		return err.Error()
	}
	return b.String()
}

func ready(p *v1.Pod) bool {
	if p == nil {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// awaitGone waits until nothing of a pod is left. /pods does not tell, because it lists what the sources name, as the
// kubelet's does: the command line shows the pods that are still being stopped.
func awaitGone(t *testing.T, name string) {
	t.Helper()
	awaitThat(t, "pod "+name+" is gone", func() bool {
		return !strings.Contains(quartet(t, "get", "pods", "-o", "name"), name+"-")
	})
}

// containerIDs are the ids of the pod's containers by name.
func containerIDs(p *v1.Pod) map[string]string {
	ids := map[string]string{}
	for _, c := range p.Status.ContainerStatuses {
		ids[c.Name] = c.ContainerID
	}
	return ids
}

// pid is the process id of a process of the node, by its name.
func pid(t *testing.T, name string) int {
	t.Helper()
	data, err := os.ReadFile(node.layout.PIDFile(name))
	if err != nil {
		t.Fatal(err)
	}
	id, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func kill(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := syscall.Kill(pid(t, name), syscall.SIGKILL); err != nil {
			t.Fatalf("kill %s: %v", name, err)
		}
	}
}
