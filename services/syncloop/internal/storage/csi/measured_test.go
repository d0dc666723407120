package csi_test

import (
	"slices"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestUnstagingIsMeasured checks the kubelet's names of what is done after the pods of a volume have gone.
func TestUnstagingIsMeasured(t *testing.T) {
	r := newRig(t, csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	if got := r.measured(); len(got) > 0 {
		t.Errorf("measured %q while it is in use", got)
	}
	r.driver.Set("NodeUnstageVolume", csidriver.Fails)
	r.unmount(one.Dir)
	eventually.That(t, "a failure is measured", func() bool {
		return slices.Contains(r.measured(), "kubernetes.io/csi:disks.example.com unmount_device false")
	})
	r.driver.Set("NodeUnstageVolume", 0)
	r.ends()
	eventually.That(t, "a success is measured", func() bool {
		return slices.Contains(r.measured(), "kubernetes.io/csi:disks.example.com unmount_device true")
	})
}
