package shadow

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/harness"
)

// recordings is the variable with the directory to which TestRecordScenarios writes.
const recordings = "QUARTET_RECORDINGS"

// TestRecordScenarios writes the recordings of services/syncloop/testdata/recordings anew. It is run by hand, after a
// change of their format:
//
//	QUARTET_RECORDINGS=services/syncloop/testdata/recordings go test -run RecordScenarios ./test/shadow
func TestRecordScenarios(t *testing.T) {
	dir := os.Getenv(recordings)
	if dir == "" {
		t.Skip("set " + recordings + " to write recordings")
	}
	r := start(t)
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			if s.before != nil {
				s.before(t, r)
			}
			file := filepath.Join(dir, s.name+".jsonl")
			_ = os.Remove(file)
			stop := r.record(t, file)
			s.do(t, r)
			if s.until != "" {
				r.until(t, "the recording has "+s.until, func() bool {
					data, err := os.ReadFile(file)
					return err == nil && strings.Contains(string(data), s.until)
				})
			}
			r.until(t, "every part is recorded again", func() bool { return isWell(t, file) })
			stop()
			must(t, os.Chmod(file, 0o644)) // it is committed
			r.clear(t)
		})
	}
}

// scenario is what happens on a node while it is recorded.
type scenario struct {
	name string
	// until is the text that the recording waits for; empty for none.
	until      string
	before, do func(t *testing.T, r *rig)
}

func scenarios() []scenario {
	serves := func(t *testing.T, r *rig) {
		t.Helper()
		name := "web-" + filepath.Base(t.Name()) // another pod in each scenario
		r.place(t, name, "serve")
		r.await(t, name, harness.Ready)
	}
	restarted := func(n int32) func(*v1.Pod) bool {
		return func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount >= n && harness.Ready(p) }
	}
	phase := func(want v1.PodPhase) func(*v1.Pod) bool {
		return func(p *v1.Pod) bool { return p.Status.Phase == want }
	}
	kill := func(service layout.Service) func(t *testing.T, r *rig) {
		return func(t *testing.T, r *rig) {
			t.Helper()
			r.kill(t, service)
			r.place(t, "next-"+string(service), "serve")
			r.await(t, "next-"+string(service), harness.Ready)
		}
	}
	return []scenario{
		{name: "start", do: serves},
		{name: "removal", until: `"part":"syncloop","op":"remove"`, before: serves, do: func(t *testing.T, r *rig) { t.Helper(); r.clear(t) }},
		{name: "crash-loop", do: func(t *testing.T, r *rig) {
			t.Helper()
			r.place(t, "crashes", "crash")
			r.await(t, "crashes", func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount >= 2 })
		}},
		{name: "completion", do: func(t *testing.T, r *rig) {
			t.Helper()
			r.write(t, "once", "uid: once-1", "restartPolicy: Never", "init", "")
			r.await(t, "once", phase(v1.PodSucceeded))
		}},
		{name: "changed-spec", before: func(t *testing.T, r *rig) {
			t.Helper()
			r.write(t, "changes", "uid: changes-1", "", "serve", "env: [{name: A, value: old}]")
			r.await(t, "changes", harness.Ready)
		}, do: func(t *testing.T, r *rig) {
			t.Helper()
			r.write(t, "changes", "uid: changes-1", "", "serve", "env: [{name: A, value: new}]")
			r.await(t, "changes", restarted(1))
		}},
		{name: "init-and-sidecar", do: func(t *testing.T, r *rig) {
			t.Helper()
			r.write(t, "steps", "uid: steps-1", fmt.Sprintf(
				"initContainers: [{name: first, image: %q, args: [init]}, {name: side, image: %[1]q, args: [serve], restartPolicy: Always}]",
				harness.HelloImage), "serve", "")
			r.await(t, "steps", harness.Ready)
		}},
		{name: "refused", do: func(t *testing.T, r *rig) {
			t.Helper()
			r.write(t, "elsewhere", "uid: elsewhere-1", "nodeSelector: {disk: fast}", "serve", "")
			r.until(t, "the pod is refused", func() bool {
				pod := r.node.Pod(t.Context(), "elsewhere")
				return pod != nil && pod.Status.Phase == v1.PodFailed
			})
		}},
		{name: "deadline", do: func(t *testing.T, r *rig) {
			t.Helper()
			r.write(t, "late", "uid: late-1", "activeDeadlineSeconds: 3", "serve", "")
			r.await(t, "late", phase(v1.PodFailed))
		}},
		{name: "eviction", before: serves, do: func(t *testing.T, r *rig) {
			t.Helper()
			out, err := exec.Command(filepath.Join(harness.BinDir(t), "quartet"), "evict", "web-eviction",
				"--state-dir", r.node.Layout.StateDir()).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			r.await(t, "web-eviction", phase(v1.PodFailed))
		}},
		{name: "killed-syncloop", before: serves, do: kill(layout.SyncLoop)},
		{name: "killed-pleg", before: serves, do: kill(layout.PLEG)},
		{name: "killed-configmux", before: serves, do: kill(layout.ConfigMux)},
	}
}

// write places a pod with a field of its metadata, a field of its spec, and a field of its container.
func (r *rig) write(t *testing.T, name, metadata, spec, mode, container string) {
	t.Helper()
	r.node.WriteManifest(t, name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, %s}
spec:
  terminationGracePeriodSeconds: 1
  %s
  containers:
    - name: main
      image: %q
      args: [%s]
      %s
`, name, metadata, spec, harness.HelloImage, mode, container))
}

// clear removes all pods.
func (r *rig) clear(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(r.node.Manifests, "*.yaml"))
	must(t, err)
	for _, file := range files {
		must(t, os.Remove(file))
	}
	r.until(t, "no pod is left", func() bool {
		pods, err := r.node.Pods(t.Context())
		return err == nil && len(pods) == 0
	})
}
