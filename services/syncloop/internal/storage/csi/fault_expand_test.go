package csi_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
)

const canMeasure = csispec.NodeServiceCapability_RPC_GET_VOLUME_STATS

// TestFaultsOfAnExpansion lets the expansion of a volume go wrong, in use or before its pod gets it. A pod keeps the
// volume that it has, and does not get one that is too small. The expansion is repeated, also by the next process, and
// the pod can go at any time.
func TestFaultsOfAnExpansion(t *testing.T) {
	for _, method := range []string{"NodeExpandVolume", "NodeGetCapabilities"} {
		for name, fault := range faults() {
			for _, inUse := range []bool{true, false} {
				for _, restarts := range []bool{true, false} {
					for _, comesBack := range []bool{true, false} {
						t.Run(fmt.Sprintf("%s/%s/in use %t/restarts %t/comes back %t", method, name, inUse, restarts, comesBack), func(t *testing.T) {
							t.Parallel()
							r := newRig(t, canStage, canExpand)
							r.restart(soon)
							one := r.claimed()
							if inUse {
								r.mount(one)
							}
							one = grown(one)
							r.driver.Set(method, fault)
							if _, err := r.plugin.Mount(t.Context(), one); (err == nil) != inUse {
								t.Fatalf("in use %t: %v", inUse, err)
							}
							failed := slices.ContainsFunc(r.cluster.noted(), func(note string) bool {
								return strings.HasPrefix(note, "VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume")
							})
							if failed != inUse {
								t.Errorf("noted %q", r.cluster.noted())
							}
							r.heal(method)
							r.timeout = 30 * time.Second
							if restarts {
								r.restart(r.timeout)
							}
							if comesBack {
								r.expandsAfterAll(one)
							}
							eventually.That(t, "it is unmounted", func() bool { return r.plugin.Unmount(t.Context(), one.Dir) == nil })
							r.ends()
						})
					}
				}
			}
		}
	}
}

// expandsAfterAll waits until a volume is expanded, and checks that it is mounted once.
func (r *rig) expandsAfterAll(one persistentvolumes.Request) {
	r.t.Helper()
	eventually.That(r.t, "it is expanded", func() bool {
		_, err := r.plugin.Mount(r.t.Context(), one)
		return err == nil && slices.Contains(r.cluster.noted(), "expanded data to 2Gi")
	})
	calls := len(r.driver.Calls("NodeExpandVolume"))
	r.mount(one)
	if again := len(r.driver.Calls("NodeExpandVolume")); again != calls {
		r.t.Error("an expanded volume is expanded again")
	}
	if at := mountsBelow(r.t, one.Dir); len(at) != 1 {
		r.t.Errorf("mounted: %v, want exactly one", at)
	}
}

// TestFaultsOfAMeasurement lets the measurement of a volume go wrong. Only the measurement fails.
func TestFaultsOfAMeasurement(t *testing.T) {
	for _, method := range []string{"NodeGetVolumeStats", "NodeGetCapabilities"} {
		for name, fault := range faults() {
			t.Run(method+"/"+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, canStage, canMeasure)
				one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
				r.mount(one)
				r.restart(soon)
				r.driver.Set(method, fault)
				if usage, err := r.plugin.Usage(t.Context(), one.Dir); err == nil || errors.Is(err, fs.ErrNotExist) {
					t.Errorf("measured %+v, %v", usage, err)
				}
				r.heal(method)
				eventually.That(t, "it is measured", func() bool {
					_, err := r.plugin.Usage(t.Context(), one.Dir)
					return err == nil
				})
				r.mount(one)
				eventually.That(t, "it is unmounted", func() bool { return r.plugin.Unmount(t.Context(), one.Dir) == nil })
				r.ends()
			})
		}
	}
}

// TestFaultsOfQuestionsForHealth lets the questions for the health of a volume and of the storage go wrong. Only the
// question fails: the volume stays, and the next question is answered.
func TestFaultsOfQuestionsForHealth(t *testing.T) {
	for _, method := range []string{"NodeGetVolumeHealth", "NodeGetStorageHealth", "NodeGetCapabilities"} {
		for name, fault := range faults() {
			t.Run(method+"/"+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, canStage, canReportHealth, csispec.NodeServiceCapability_RPC_GET_STORAGE_HEALTH)
				one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
				r.mount(one)
				r.driver.Ail("vol-1", ill(csispec.VolumeHealthErrorType_DEGRADED, "Slow", ""))
				ask := func() error {
					of, err := r.plugin.Health(t.Context(), one.Dir)
					storage, failed := r.plugin.StorageHealth(t.Context(), driverName)
					if err == nil && len(of) != 1 || failed == nil && len(storage) != 1 {
						t.Errorf("reported %v and %v, want one condition each", of, storage)
					}
					return errors.Join(err, failed)
				}
				r.restart(soon)
				r.driver.Set(method, fault)
				err := ask()
				if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, volumes.ErrNotExamined) {
					t.Errorf("asked: %v", err)
				}
				r.heal(method)
				eventually.That(t, "it is answered", func() bool { return ask() == nil })
				r.mount(one)
				eventually.That(t, "it is unmounted", func() bool { return r.plugin.Unmount(t.Context(), one.Dir) == nil })
				r.ends()
			})
		}
	}
}

// TestAVolumeIsUnpublishedWhateverTheDriverCan lets the question for capabilities fail: as in a kubelet, it is not
// asked before NodeUnpublishVolume.
func TestAVolumeIsUnpublishedWhateverTheDriverCan(t *testing.T) {
	r := newRig(t, canStage)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	r.driver.Set("NodeGetCapabilities", faults()["error"])
	r.unmount(one.Dir)
	r.driver.Set("NodeGetCapabilities", 0)
	r.ends()
}

// TestAnExpansionIsRecoveredWithASmallerSize lets the driver refuse a size. Nothing is tried until the user asks for
// another one.
func TestAnExpansionIsRecoveredWithASmallerSize(t *testing.T) {
	for _, restarts := range []bool{true, false} {
		r := newRig(t, canStage, canExpand)
		one := r.claimed()
		r.mount(one)
		one = grown(one)
		r.driver.Refuse(codes.OutOfRange)
		r.mount(one)
		if got := r.cluster.noted(); !slices.Contains(got, "failed data, infeasible true") {
			t.Errorf("noted %q", got)
		}
		one.Claim = one.Claim.DeepCopy()
		one.Claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInfeasible
		if restarts {
			r.restart(r.timeout)
		}
		r.mount(one)
		if calls := r.driver.Calls("NodeExpandVolume"); len(calls) != 1 {
			t.Errorf("%d calls, want no other after the refusal", len(calls))
		}
		r.driver.Refuse(codes.OK)
		smaller := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1536Mi")}
		one.Claim, one.PV = one.Claim.DeepCopy(), one.PV.DeepCopy()
		one.PV.Spec.Capacity, one.Claim.Spec.Resources.Requests = smaller, smaller
		one.Claim.Status.AllocatedResources = smaller
		one.Claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizePending
		r.mount(one)
		if got := last[*csispec.NodeExpandVolumeRequest](r, "NodeExpandVolume").GetCapacityRange().GetRequiredBytes(); got != 1536<<20 {
			t.Errorf("expanded to %d bytes, want 1536Mi", got)
		}
		if got := r.cluster.noted(); !slices.Contains(got, "expanded data to 1536Mi") {
			t.Errorf("noted %q", got)
		}
		r.unmount(one.Dir)
		r.ends()
	}
}
