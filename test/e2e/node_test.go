// Package e2e drives a whole node as a user would: the built binaries, the bundled containerd, manifests in a
// directory, the command line and the read-only API. Nothing in it reaches into a process.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/livenode"
)

const (
	image = livenode.Image
	// patience is the time limit of a wait on a busy machine. An idle one needs a second or two.
	patience = 2 * time.Minute
	interval = 20 * time.Millisecond
)

// node is the one node that all tests of this package share; each uses pods of its own and removes them.
var node *livenode.Node

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if reason := livenode.CannotRun(livenode.Bin()); reason != nil {
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
		printLogs()
	}
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: stop the node:", err)
		return 1
	}
	return code
}

func start() (stop func() error, err error) {
	if err := startTraces(); err != nil {
		return nil, err
	}
	if node, err = livenode.New(livenode.Bin(), "e2e"); err != nil {
		return nil, err
	}
	node.Env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + traces.Endpoint(), "OTEL_BSP_SCHEDULE_DELAY=200"}
	if err := node.Up(context.Background()); err != nil {
		printLogs()
		return nil, err
	}
	return func() error { return errors.Join(node.Remove(context.Background()), stopTraces()) }, nil
}

func printLogs() {
	files, err := filepath.Glob(filepath.Join(node.Layout.Logs(), "*.log"))
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
	out, err := node.Command(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// place puts a manifest in its place; it is removed when the test ends.
func place(t *testing.T, file, manifest string) {
	t.Helper()
	if err := node.Place(file, manifest); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { takeAway(t, file) })
}

func takeAway(t *testing.T, file string) {
	t.Helper()
	if err := node.TakeAway(file); err != nil {
		t.Error(err)
	}
}

// manifest returns a pod with one container that runs the example program with args.
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

// pod returns a pod by the name in its manifest; the name of a static pod ends with the node's name.
func pod(ctx context.Context, name string) (*v1.Pod, error) {
	items, err := node.Pods(ctx)
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

// await polls until a pod meets a condition, which what describes. /pods does not list a nil pod.
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
	eventually.Wait{Patience: patience, Interval: interval}.That(t, what, ok)
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

func ready(p *v1.Pod) bool { return livenode.Ready(p) }

// awaitGone waits until nothing of a pod is left. It uses the command line, which shows the pods that are still being
// stopped, because /pods lists the pods of the sources, as the kubelet's does.
func awaitGone(t *testing.T, name string) {
	t.Helper()
	awaitThat(t, "pod "+name+" is gone", func() bool {
		names, err := node.Names(t.Context())
		return err == nil && !strings.Contains(names, name+"-")
	})
}

// containerIDs returns the ids of the pod's containers by name.
func containerIDs(p *v1.Pod) map[string]string {
	ids := map[string]string{}
	for _, c := range p.Status.ContainerStatuses {
		ids[c.Name] = c.ContainerID
	}
	return ids
}

// pid returns the process id of a process of the node by its name.
func pid(t *testing.T, name string) int {
	t.Helper()
	id, err := node.PID(name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// kill ends processes of the node by SIGKILL. At the end of the test it waits until their successors answer, so that
// the next test has a whole node.
func kill(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := syscall.Kill(pid(t, name), syscall.SIGKILL); err != nil {
			t.Fatalf("kill %s: %v", name, err)
		}
		t.Cleanup(func() { awaitThat(t, name+" answers again", func() bool { return answers(t, name) }) })
	}
}

// answers reports whether a process of the node answers a health request, with any result.
func answers(t *testing.T, name string) bool {
	t.Helper()
	cmd := exec.Command(filepath.Join(livenode.Bin(), name), "health", "--listen", node.Layout.Address(layout.Service(name)))
	out, err := cmd.CombinedOutput()
	return err == nil || !strings.Contains(string(out), "see that it runs") && !strings.Contains(string(out), "it hangs")
}
