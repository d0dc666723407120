package executor_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// gpus are the devices of a pod.
type gpus struct {
	mu       sync.Mutex
	ready    error
	fails    error
	released []types.UID
}

func (g *gpus) set(ready, fails error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready, g.fails = ready, fails
}

func (g *gpus) Ready(*v1.Pod) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ready
}

func (g *gpus) Give(context.Context, *v1.Pod, *v1.Container) (*containerspec.Given, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &containerspec.Given{
		Envs:        []v1.EnvVar{{Name: "GPU", Value: "a"}, {Name: "OWN", Value: "of the plugin"}},
		Mounts:      []*runtimeapi.Mount{{ContainerPath: "/lib/gpu", HostPath: "/usr/lib/gpu", Readonly: true}},
		Devices:     []*runtimeapi.Device{{ContainerPath: "/dev/gpu", HostPath: "/dev/null", Permissions: "rw"}},
		CDIDevices:  []*runtimeapi.CDIDevice{{Name: "example.com/gpu=a"}},
		Annotations: map[string]string{"example.com/gpu": "a"},
	}, g.fails
}

func (*gpus) HasCPUs(types.UID, string) bool { return false }

func (*gpus) Pods() []types.UID { return []types.UID{"gone"} }

func (g *gpus) Release(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.released = append(g.released, uid)
}

// TestAContainerGetsWhatItsDevicesBring checks each field, and that the container's own variables take precedence.
func TestAContainerGetsWhatItsDevicesBring(t *testing.T) {
	g := &gpus{}
	n := newNode(t, func(c *executor.Config) { c.Devices = g })
	pod := newPod("a")
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "OWN", Value: "of the pod"}}
	pod.Spec.Containers[0].Args = []string{"$(GPU)", "$(OWN)"}
	pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	if _, err := n.manager.SyncPod(n.ctx, pod, nil); err != nil {
		t.Fatal(err)
	}
	got := n.created(pod, "a")
	var envs []string
	for _, e := range got.GetEnvs() {
		envs = append(envs, e.GetKey()+"="+string(e.GetValue()))
	}
	if text := strings.Join(envs, " "); text != "GPU=a OWN=of the pod" {
		t.Errorf("the environment is %s", text)
	}
	if diff := cmp.Diff([]string{"a", "of the pod"}, got.GetArgs()); diff != "" {
		t.Errorf("arguments (-want +got)\n%s", diff)
	}
	if mounts := got.GetMounts(); len(mounts) < 2 || mounts[0].GetContainerPath() != "/lib/gpu" ||
		mounts[1].GetContainerPath() != "/data" {
		t.Errorf("the mounts are %v", mounts)
	}
	given, _ := g.Give(t.Context(), nil, nil)
	if diff := cmp.Diff(given.Devices, got.GetDevices(), protocmp.Transform()); diff != "" {
		t.Errorf("devices (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(given.CDIDevices, got.GetCDIDevices(), protocmp.Transform()); diff != "" {
		t.Errorf("CDI devices (-want +got)\n%s", diff)
	}
	if got.GetAnnotations()["example.com/gpu"] != "a" {
		t.Errorf("the annotations are %v", got.GetAnnotations())
	}
	if err := n.manager.ReleasePod(n.ctx, pod); err != nil || len(g.released) != 1 || g.released[0] != pod.UID {
		t.Errorf("released are %v, %v, want %s", g.released, err, pod.UID)
	}
	left, err := n.manager.Leftovers()
	if err != nil || len(left) == 0 || left[len(left)-1].UID != "gone" {
		t.Errorf("left over are %v, %v, want the pod gone, which has devices", left, err)
	}
}

// TestASandboxWaitsForDevices checks that a pod whose plugin is away has no sandbox, and that containers of a sandbox
// that exists are not held up.
func TestASandboxWaitsForDevices(t *testing.T) {
	g := &gpus{ready: errors.New("no healthy devices present")}
	n := newNode(t, func(c *executor.Config) { c.Devices = g })
	pod := newPod("a")
	result, err := n.manager.SyncPod(n.ctx, pod, nil)
	if !errors.As(err, new(*executor.DevicesError)) || result.SandboxError == nil || len(n.cri.Containers()) > 0 {
		t.Errorf("error = %v, want a DevicesError and no container", err)
	}
	g.set(nil, errors.New("PreStartContainer failed"))
	result, err = n.manager.SyncPod(n.ctx, pod, nil)
	if err == nil || result.Reasons["a"].Reason != "CreateContainerConfigError" {
		t.Errorf("error = %v, reasons %v, want that the container is not created", err, result.Reasons)
	}
	g.set(errors.New("away"), nil)
	if _, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod)); err != nil {
		t.Errorf("in a sandbox that exists: %v", err)
	}
	n.created(pod, "a")
}
