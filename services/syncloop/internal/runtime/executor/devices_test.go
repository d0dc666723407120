package executor_test

import (
	"context"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// devices is a kind of volumes that are block devices: /dev/null, by a link.
type devices struct{}

func (devices) Name() string                                 { return "volumeDevices/example.com~devices" }
func (devices) CanSupport(v *v1.Volume) bool                 { return v.PersistentVolumeClaim != nil }
func (devices) Refreshes() bool                              { return false }
func (devices) TearDown(_ context.Context, dir string) error { return os.Remove(dir) }
func (devices) SetUp(_ context.Context, r volumes.Request) error {
	return os.Symlink("/dev/null", r.Dir)
}

// TestAContainerGetsItsBlockDevices also checks that a claim that is read-only gives a device that can only be read.
func TestAContainerGetsItsBlockDevices(t *testing.T) {
	n := newNode(t, func(c *executor.Config) { c.Volumes = newVolumes(t, *c, volumes.Machine{}, devices{}) })
	pod := newPod("a")
	for name, readOnly := range map[string]bool{"disk": false, "fixed": true} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: readOnly},
		}})
	}
	c := &pod.Spec.Containers[0]
	c.VolumeDevices = []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/disk"}, {Name: "fixed", DevicePath: "/dev/fixed"}}
	if _, err := n.manager.SyncPod(n.ctx, pod, nil); err != nil {
		t.Fatal(err)
	}
	got := n.created(pod, "a").GetDevices()
	for i, want := range []struct{ name, permissions string }{{"disk", "mrw"}, {"fixed", "r"}} {
		if len(got) != 2 || got[i].GetContainerPath() != "/dev/"+want.name || got[i].GetPermissions() != want.permissions ||
			!strings.HasSuffix(got[i].GetHostPath(), "/volumeDevices/example.com~devices/"+want.name) {
			t.Errorf("devices %v, want %v", got, want)
		}
	}
}

func TestABlockDeviceThatCannotBeGiven(t *testing.T) {
	for want, device := range map[string]v1.VolumeDevice{
		`container "a": volumeDevices[0]: the pod has no volume "other"`: {Name: "other", DevicePath: "/dev/disk"},
		"error DevicePath `disk` must be an absolute path":               {Name: "disk", DevicePath: "disk"},
	} {
		n := newNode(t, func(c *executor.Config) { c.Volumes = newVolumes(t, *c, volumes.Machine{}, devices{}) })
		pod := newPod("a")
		pod.Spec.Volumes = []v1.Volume{{Name: "disk", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"},
		}}}
		pod.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{device}
		if _, err := n.manager.SyncPod(n.ctx, pod, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
