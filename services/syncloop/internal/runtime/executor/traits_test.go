package executor_test

import (
	"context"
	"os"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// labeled is a kind of volumes that have a group and an SELinux label.
type labeled struct{}

func (labeled) Name() string                                     { return "example.com~labeled" }
func (labeled) CanSupport(v *v1.Volume) bool                     { return v.PersistentVolumeClaim != nil }
func (labeled) Refreshes() bool                                  { return false }
func (labeled) TearDown(_ context.Context, dir string) error     { return os.Remove(dir) }
func (labeled) SetUp(_ context.Context, r volumes.Request) error { return os.Mkdir(r.Dir, 0o750) }
func (labeled) Traits(string) volumes.Traits {
	return volumes.Traits{Group: ptr.To[int64](1234), KeepsLabel: true}
}

// TestContainersGetTheGroupAndKeepTheLabelOfAVolume checks what the runtime is told.
func TestContainersGetTheGroupAndKeepTheLabelOfAVolume(t *testing.T) {
	n := newNode(t, func(c *executor.Config) { c.Volumes = newVolumes(t, *c, volumes.Machine{}, labeled{}) })
	pod := withVolume(newPod("a"), v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}, v1.VolumeMount{})
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](7), SupplementalGroups: []int64{8}}
	if _, err := n.manager.SyncPod(n.ctx, pod, nil); err != nil {
		t.Fatal(err)
	}
	want := []int64{7, 8, 1234}
	if got := n.created(pod, "a").GetLinux().GetSecurityContext().GetSupplementalGroups(); !slices.Equal(got, want) {
		t.Errorf("the container has the groups %v, want %v", got, want)
	}
	sandbox, _ := n.cri.SandboxConfig(n.cri.Sandboxes()[0])
	if got := sandbox.GetLinux().GetSecurityContext().GetSupplementalGroups(); !slices.Equal(got, want) {
		t.Errorf("the sandbox has the groups %v, want %v", got, want)
	}
	if m := n.mountOf(pod, "a", "/data"); m.GetSelinuxRelabel() {
		t.Errorf("mounted %v, which the runtime labels", m)
	}
}
