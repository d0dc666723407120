package csi_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
)

const canExpand = csispec.NodeServiceCapability_RPC_EXPAND_VOLUME

func (c *cluster) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

func (c *cluster) noted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.log)
}

// Normal implements csi.Events.
func (c *cluster) Normal(_ context.Context, _ *v1.Pod, _, reason, message string) {
	c.note("%s: %s", reason, message)
}

// Warning implements csi.Events.
func (c *cluster) Warning(_ context.Context, _ *v1.Pod, _, reason, message string) {
	c.note("%s: %s", reason, message)
}

// Claim implements csi.Events.
func (c *cluster) Claim(claim *v1.PersistentVolumeClaim, kind, reason, message string) {
	c.note("%s: %s %s: %s", claim.Name, kind, reason, message)
}

// MarkExpanding implements csi.Claims.
func (c *cluster) MarkExpanding(_ context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	c.note("expanding %s", claim.Name)
	return claim, nil
}

// MarkExpanded implements csi.Claims.
func (c *cluster) MarkExpanded(
	_ context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity,
) (*v1.PersistentVolumeClaim, error) {
	c.note("expanded %s to %s", claim.Name, size.String())
	return claim, nil
}

// MarkExpansionFailed implements csi.Claims.
func (c *cluster) MarkExpansionFailed(
	_ context.Context, claim *v1.PersistentVolumeClaim, _ error, infeasible bool,
) (*v1.PersistentVolumeClaim, error) {
	c.note("failed %s, infeasible %t", claim.Name, infeasible)
	return claim, nil
}

// claimed returns the request for a claim of 1Gi.
func (r *rig) claimed() persistentvolumes.Request {
	pv := newPV("pv-1", "vol-1")
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	one := r.request(newPod("u1"), pv)
	one.Claim = &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Status: v1.PersistentVolumeClaimStatus{
			Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
		}}
	return one
}

// grown returns a request after the controller has expanded the volume to 2Gi.
func grown(before persistentvolumes.Request) persistentvolumes.Request {
	two := v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}
	after := before
	after.PV, after.Claim = before.PV.DeepCopy(), before.Claim.DeepCopy()
	after.PV.Spec.Capacity, after.Claim.Status.AllocatedResources = two, two
	after.Claim.Spec.Resources.Requests = two
	after.Claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{
		v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending,
	}
	return after
}

func TestAVolumeInUseIsExpandedOnce(t *testing.T) {
	r := newRig(t, canStage, canExpand)
	one := r.claimed()
	r.mount(one)
	one = grown(one)
	r.mount(one)
	r.mount(one)
	calls := r.driver.Calls("NodeExpandVolume")
	got := last[*csispec.NodeExpandVolumeRequest](r, "NodeExpandVolume")
	if len(calls) != 1 || got.GetCapacityRange().GetRequiredBytes() != 2<<30 ||
		got.GetVolumePath() != one.Dir+"/mount" || got.GetStagingTargetPath() == "" {
		t.Errorf("%d calls, the last one %v", len(calls), got)
	}
	const message = `FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume "pv-1" node-1`
	want := []string{"expanding data", "expanded data to 2Gi", message, "data: Normal " + message}
	if got := r.cluster.noted(); !slices.Equal(got, want) {
		t.Errorf("noted %q, want %q", got, want)
	}
	r.unmount(one.Dir)
	r.ends()
}

func TestAVolumeIsExpandedBeforeItsPodGetsIt(t *testing.T) {
	r := newRig(t, canStage, canExpand)
	one := grown(r.claimed())
	r.driver.Refuse(codes.Internal)
	fails(t, r, one, "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal")
	r.driver.Refuse(codes.OK)
	r.mount(one)
	want := []string{"expanding data", "failed data, infeasible false", "expanding data", "expanded data to 2Gi"}
	if got := r.cluster.noted(); len(got) != 6 || !slices.Equal(got[:4], want) {
		t.Errorf("noted %q, want %q", got, want)
	}
	r.unmount(one.Dir)
	r.ends()
}

func TestAnExpansionThatFails(t *testing.T) {
	for code, want := range map[codes.Code][]string{
		codes.OutOfRange:         {"expanding data", "failed data, infeasible true", "VolumeResizeFailed"},
		codes.Internal:           {"expanding data", "failed data, infeasible false", "VolumeResizeFailed"},
		codes.Aborted:            {"expanding data", "VolumeResizeFailed"},
		codes.FailedPrecondition: {"expanding data", "failed data, infeasible false"},
	} {
		r := newRig(t, canStage, canExpand)
		one := r.claimed()
		r.mount(one)
		r.driver.Refuse(code)
		one = grown(one)
		r.mount(one) // the pod keeps the volume
		got := r.cluster.noted()
		if len(got) != len(want) || !slices.Equal(got[:len(want)-1], want[:len(want)-1]) ||
			!strings.HasPrefix(got[len(got)-1], want[len(want)-1]) {
			t.Errorf("%s: noted %q, want %q", code, got, want)
		}
		r.mount(one)
		if again := len(r.driver.Calls("NodeExpandVolume")) == 2; again != (code != codes.FailedPrecondition) {
			t.Errorf("%s: called again %t", code, again)
		}
		r.unmount(one.Dir)
		r.ends()
	}
}

// TestAnExpansionWithoutTheDriver covers a driver that cannot expand volumes, and a claim that is read-only.
func TestAnExpansionWithoutTheDriver(t *testing.T) {
	r := newRig(t, canStage)
	one := r.claimed()
	r.mount(one)
	r.mount(grown(one))
	if got := r.cluster.noted(); len(got) != 2 || got[0] != "failed data, infeasible false" || !strings.Contains(got[1], "NodeExpand is not supported by the CSI driver disks.example.com") {
		t.Errorf("noted %q", got)
	}
	r = newRig(t, canExpand)
	one = grown(r.claimed())
	one.ReadOnly = true
	r.mount(one)
	r.mount(one)
	if got := r.cluster.noted(); len(got) != 2 || got[1] != "data: Warning "+got[0] || !strings.Contains(got[0], "requested read-only file system") || len(r.driver.Calls("NodeExpandVolume")) > 0 {
		t.Errorf("noted %q", got)
	}
}
