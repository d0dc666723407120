package volumes_test

import (
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// TestUsers covers volumes that containers mount, have as a device, or do not use.
func TestUsers(t *testing.T) {
	pod := newPod("u1", "mounted")
	pod.Spec.InitContainers = []v1.Container{{VolumeDevices: []v1.VolumeDevice{{Name: "device"}, {Name: "mounted"}}}}
	for name, want := range map[string][2]bool{"mounted": {true, true}, "device": {false, true}, "other": {}} {
		if mounts, devices := volumes.Users(pod, name); [2]bool{mounts, devices} != want {
			t.Errorf("%s: mounts %t, devices %t, want [2]bool{mounts, devices} %v", name, mounts, devices, want)
		}
	}
}

// TestADeviceIsAVolume checks that a volume is set up that containers use as a device only.
func TestADeviceIsAVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		pod := newPod("u1", "data")
		c := &pod.Spec.Containers[0]
		c.VolumeMounts, c.VolumeDevices = nil, []v1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
		if err := r.want(pod); err != nil || r.plugin.count("setup data") != 1 {
			t.Errorf("set up %d times: %v, want 1", r.plugin.count("setup data"), err)
		}
	})
}
