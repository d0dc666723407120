package csi_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/test/eventually"
)

// blockEnds unmounts a block device, and checks that nothing of it is left.
func (r *rig) blockEnds(t *testing.T, one persistentvolumes.Request) {
	t.Helper()
	eventually.That(t, "it is unmounted", func() bool { return r.plugin.Unmount(t.Context(), one.Dir) == nil })
	r.ends()
	r.nothingAttached()
}

// TestFaultsOfABlockDeviceThatGoes lets each call that unmounts go wrong. The pod comes back or does not, also in the
// next process, and nothing is left in the end.
func TestFaultsOfABlockDeviceThatGoes(t *testing.T) {
	needsLoops(t)
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume"} {
		for name, fault := range faults() {
			for _, comesBack := range []bool{true, false} {
				for _, restarts := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s/%s/comes back %t/restarts %t", method, name, comesBack, restarts), func(t *testing.T) {
						t.Parallel()
						r := newRig(t, canStage)
						t.Cleanup(func() { detachAll(r) })
						one := r.blockRequest(newPod("u1"), "pv-1")
						r.obtain(one)
						r.restart(soon)
						r.driver.Set(method, fault)
						before := len(r.driver.Calls(method))
						if err := r.plugin.Unmount(t.Context(), one.Dir); (err == nil) != (method == "NodeUnstageVolume") {
							t.Errorf("unmounted: %v", err)
						}
						eventually.That(t, "it is called", func() bool { return len(r.driver.Calls(method)) > before })
						r.heal(method)
						if restarts {
							r.restart(30 * time.Second)
						}
						if comesBack {
							eventually.That(t, "it is mounted again", func() bool {
								_, err := r.plugin.Mount(t.Context(), one)
								return err == nil
							})
							r.obtain(one)
							writeDevice(t, one.Dir, "again")
						}
						r.blockEnds(t, one)
					})
				}
			}
		}
	}
}

// TestFaultsOfTheExpansionOfABlockDevice lets the expansion of a block device go wrong, in use or before its pod gets
// it. It is repeated, also by the next process, and the pod can go at any time.
func TestFaultsOfTheExpansionOfABlockDevice(t *testing.T) {
	needsLoops(t)
	for name, fault := range faults() {
		for _, inUse := range []bool{true, false} {
			for _, restarts := range []bool{true, false} {
				for _, comesBack := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s/in use %t/restarts %t/comes back %t", name, inUse, restarts, comesBack), func(t *testing.T) {
						t.Parallel()
						r := newRig(t, canStage, canExpand)
						t.Cleanup(func() { detachAll(r) })
						r.restart(soon)
						one := r.claimedDevice()
						if inUse {
							r.obtain(one)
						}
						one = grown(one)
						r.driver.Set("NodeExpandVolume", fault)
						if _, err := r.plugin.Mount(t.Context(), one); (err == nil) != inUse {
							t.Fatalf("mounted: %v", err)
						}
						r.heal("NodeExpandVolume")
						if restarts {
							r.restart(30 * time.Second)
						}
						if comesBack {
							r.deviceExpandsAfterAll(one)
						}
						r.blockEnds(t, one)
					})
				}
			}
		}
	}
}

// claimedDevice returns the request for a claim of 1Gi that is a block device.
func (r *rig) claimedDevice() persistentvolumes.Request {
	one, of := r.blockRequest(newPod("u1"), "pv-1"), r.claimed()
	one.Claim, one.PV.Spec.Capacity = of.Claim, of.PV.Spec.Capacity
	one.Claim.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	return one
}

// deviceExpandsAfterAll waits until a block device is expanded, and checks that the driver was told its path, and is
// not asked once more.
func (r *rig) deviceExpandsAfterAll(one persistentvolumes.Request) {
	r.t.Helper()
	eventually.That(r.t, "it is expanded", func() bool {
		_, err := r.plugin.Mount(r.t.Context(), one)
		return err == nil && slices.Contains(r.cluster.noted(), "expanded data to 2Gi")
	})
	at := filepath.Join(r.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv-1/u1")
	if got := last[*csispec.NodeExpandVolumeRequest](r, "NodeExpandVolume").GetVolumePath(); got != at {
		r.t.Errorf("expanded at %s, want %s", got, at)
	}
	calls := r.driver.Calls("NodeExpandVolume")
	r.obtain(one)
	if again := len(r.driver.Calls("NodeExpandVolume")); again != len(calls) {
		r.t.Error("an expanded device is expanded again")
	}
}
