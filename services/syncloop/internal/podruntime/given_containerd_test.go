package podruntime_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/podruntime"
	"github.com/quartet-node/quartet/services/syncloop/internal/userns"
)

// TestWhatAContainerIsGiven looks from outside at the processes of pods on a real runtime.
func TestWhatAContainerIsGiven(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a containerd")
	}
	n := newRealNode(t)
	t.Run("user namespace", func(t *testing.T) { givenAUserNamespace(t, n.in(t)) })
	t.Run("runtime handler", func(t *testing.T) { givenARuntimeHandler(t, n.in(t)) })
}

// in is the node for a subtest.
func (n *node) in(t *testing.T) *node {
	one := *n
	one.t = t
	return &one
}

// run starts a pod, and ends and removes it with the test.
func (n *node) run(pod *v1.Pod) {
	n.t.Helper()
	n.t.Cleanup(func() {
		if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
			n.t.Error(err)
		}
		if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err != nil {
			n.t.Error(err)
		}
	})
	n.sync(pod)
}

// proc is the folder in /proc of the first process of the newest container of a name.
func (n *node) proc(pod *v1.Pod, name string) string {
	n.t.Helper()
	response, err := n.runtime.ContainerStatus(n.ctx, n.id(pod, name), true)
	if err != nil {
		n.t.Fatal(err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(response.GetInfo()["info"]), &info); err != nil || info.Pid == 0 {
		n.t.Fatalf("the runtime says of %s: %v, error %v", name, response.GetInfo(), err)
	}
	return filepath.Join("/proc", fmt.Sprint(info.Pid))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func givenAUserNamespace(t *testing.T, n *node) {
	n.config.UserIDs = userns.New(userns.Config{
		PodsDir: filepath.Join(n.config.RootDir, "pods"), Subordinate: func(perPod uint32) (userns.Range, error) {
			return userns.Subordinate(userns.Local{}, perPod)
		},
	}).Of
	n.manager = podruntime.New(n.config)
	seen := map[string]bool{}
	for i := range 2 {
		pod := helloPod(fmt.Sprint("mapped-", i), nil, "sleep")
		pod.Spec.HostUsers = new(false)
		pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
		n.run(pod)
		users := read(t, filepath.Join(n.proc(pod, "c0-sleep"), "uid_map"))
		ids, err := n.config.UserIDs(pod.UID)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(strings.Fields(users), " "), fmt.Sprintf("0 %d %d", ids.First, ids.Length); got != want || seen[got] {
			t.Errorf("the users of the container are %s, want %s, which no other pod has", got, want)
		}
		seen[users] = true
		// Root in the container owns what the node's root has made for it.
		var data unix.Stat_t
		if err := unix.Stat(filepath.Join(n.proc(pod, "c0-sleep"), "root/data"), &data); err != nil || data.Uid != ids.First {
			t.Errorf("the volume is of user %d, error %v; want %d", data.Uid, err, ids.First)
		}

		// Another process restarts a container in the same namespace.
		n.manager = podruntime.New(n.config)
		if n.sync(pod).Wrote {
			t.Error("a new process writes to a pod that is as it should be")
		}
		if err := n.runtime.StopContainer(n.ctx, n.id(pod, "c0-sleep"), 2); err != nil {
			t.Fatal(err)
		}
		n.sync(pod)
		if got := read(t, filepath.Join(n.proc(pod, "c0-sleep"), "uid_map")); got != users {
			t.Errorf("after its restart the users of the container are %s, want %s", got, users)
		}
	}
}

func givenARuntimeHandler(t *testing.T, n *node) {
	pod := helloPod("handled", nil, "sleep")
	pod.Spec.RuntimeClassName = new("runc")
	n.run(pod)
	response, err := n.runtime.PodSandboxStatus(n.ctx, n.observe(pod).Sandboxes[0].Id, false)
	if err != nil || response.GetStatus().GetRuntimeHandler() != "runc" {
		t.Errorf("the sandbox has the handler %q, error %v", response.GetStatus().GetRuntimeHandler(), err)
	}
	pod = helloPod("unhandled", nil, "sleep")
	pod.Spec.RuntimeClassName = new("kata")
	result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if !errors.As(result.SandboxError, new(*podruntime.UnsupportedError)) || !strings.Contains(err.Error(), `no handler named "kata"; it has runc`) {
		t.Errorf("result %+v, error %v", result, err)
	}
	n.want(pod, "")
}
