package nodeclaims

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/nodevolumes"
)

// errAway is why there is no volume.
var errAway = errors.New("the driver is away")

// classVolumesOf are the volumes of storage classes, by the UIDs of their claims.
type classVolumesOf map[types.UID]nodevolumes.Volume

// Provide implements Volumes.
func (c classVolumesOf) Provide(_ context.Context, claim *v1.PersistentVolumeClaim) (nodevolumes.Volume, error) {
	if *claim.Spec.StorageClassName == "away" {
		c[claim.UID] = nodevolumes.Volume{Problem: errAway}
		return nodevolumes.Volume{}, errAway
	}
	name := "pv-of-" + string(claim.UID)
	c[claim.UID] = nodevolumes.Volume{
		PV: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}, Capacity: resource.MustParse("2Gi"),
	}
	return c[claim.UID], nil
}

// Begin implements Volumes.
func (c classVolumesOf) Begin(claim *v1.PersistentVolumeClaim) {
	_, _ = c.Provide(context.Background(), claim)
}

// Known implements Volumes.
func (c classVolumesOf) Known(claim types.UID) nodevolumes.Volume { return c[claim] }

// Want implements Volumes.
func (c classVolumesOf) Want(claim *v1.PersistentVolumeClaim) {
	if volume, known := c[claim.UID]; known {
		volume.Capacity = claim.Spec.Resources.Requests[v1.ResourceStorage]
		c[claim.UID] = volume
	}
}

// Release implements Volumes.
func (c classVolumesOf) Release(claim types.UID) error {
	delete(c, claim)
	return nil
}

// setClass changes the claim of a name to one of a storage class.
func (d *documents) setClass(name, uid, class string) {
	d.set(name, uid, "1Gi")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claims[name].Spec.StorageClassName = ptr.To(class)
}

// askClass asks for the claim of a registered pod with its volume, for a process without Run.
func (r *rig) askClass(p *v1.Pod) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	claim, pv, err := r.ask(p)
	if err != nil || pv != nil {
		return claim, pv, err
	}
	return r.provided(context.Background(), claim)
}

// A claim with a storage class has no directory. It is pending until it has a volume, which is given up with the claim
// when no pod uses it.
func TestAClaimWithAStorageClassHasAVolumeOfIt(t *testing.T) {
	r := newRig(t)
	volumes := classVolumesOf{}
	r.cfg.Volumes = volumes
	r.loaded()
	r.documents.setClass("disk", "u1", "fast")
	r.documents.setClass("late", "u2", "away")
	claim, pv, err := r.askClass(pod("p1", "disk"))
	if err != nil || pv.Name != "pv-of-u1" || claim.Spec.VolumeName != pv.Name || claim.Status.Phase != v1.ClaimBound ||
		claim.Status.Capacity.Storage().String() != "2Gi" {
		t.Fatalf("got %+v, %v, %v", claim, pv, err)
	}
	r.settle()
	if told := volumes["u1"].Capacity; told.String() != "1Gi" {
		t.Errorf("the volume is told the size %s", told.String())
	}
	if _, _, err := r.askClass(pod("p2", "late")); !errors.Is(err, errAway) {
		t.Errorf("a volume that waits: %v", err)
	}
	if names := r.names(); len(names) != 2 || names[0] != ".u1.json" || names[1] != ".u2.json" {
		t.Errorf("there are %q", names)
	}
	list := r.List()
	if len(list) != 2 || list[0].PV == nil || list[0].UsedBy[0] != "shop/pod-p1" || list[1].PV != nil ||
		list[1].Claim.Status.Phase != v1.ClaimPending || list[1].Problem != errAway.Error() {
		t.Errorf("listed %+v", list)
	}
	if described := r.Describe(); len(described) != 2 || len(described[1].GetPersistentVolume()) != 0 {
		t.Errorf("described as %v", described)
	}

	for _, dir := range []string{classVolumes, classDevices} {
		at := filepath.Join(r.pods, "p1", dir, pv.Name)
		if err := os.MkdirAll(at, 0o750); err != nil {
			t.Fatal(err)
		}
		r.next(nil)
		r.cfg.Volumes = volumes
		r.loaded()
		r.documents.set("disk", "", "")
		if r.settle(); len(volumes) != 2 || len(r.List()) != 2 {
			t.Errorf("a volume that a pod has in %s is given up", dir)
		}
		if err := os.RemoveAll(at); err != nil {
			t.Fatal(err)
		}
	}
	if r.settle(); len(volumes) != 1 || len(r.List()) != 1 {
		t.Errorf("the volume is not given up: %v, %+v", volumes, r.List())
	}
}

// A claim of a class that binds at once has its volume before a pod uses it, also after a kill of the process, and
// gives it up when it is deleted.
func TestAClaimThatBindsAtOnceWaitsForNoPod(t *testing.T) {
	r := newRig(t)
	volumes := classVolumesOf{}
	r.cfg.Volumes = volumes
	r.loaded()
	r.documents.setClass("disk", "u1", "soon")
	r.documents.setClass("late", "u2", "fast")
	r.documents.setUnread("a manifest is not read yet")
	if r.settle(); len(volumes) != 0 {
		t.Errorf("while another source may have the claim: %v", volumes)
	}
	r.documents.setUnread("")
	for range 2 {
		r.settle()
		if list := r.List(); len(volumes) != 1 || len(list) != 1 || list[0].PV == nil || list[0].PV.Name != "pv-of-u1" {
			t.Errorf("there are the volumes %v of the claims %+v", volumes, list)
		}
		r.next(nil)
		clear(volumes)
		r.cfg.Volumes = volumes
		r.loaded()
	}
	r.settle()
	if _, pv, err := r.askClass(pod("p1", "disk")); err != nil || pv.Name != "pv-of-u1" {
		t.Errorf("a pod gets %v, %v", pv, err)
	}
	r.end("p1")
	r.documents.set("disk", "", "")
	if r.settle(); len(volumes) != 0 || len(r.names()) != 0 {
		t.Errorf("left are %v, %q", volumes, r.names())
	}
	r.documents.setClass("disk", "u3", "soon") // made again
	if r.settle(); len(volumes) != 1 || volumes["u3"].PV == nil {
		t.Errorf("the claim that is made again has %v", volumes)
	}
}

// A manifest may be edited: a claim that has data keeps them, and says so.
func TestAClaimKeepsItsStorageClass(t *testing.T) {
	r := newRig(t)
	r.cfg.Volumes = classVolumesOf{}
	r.loaded()
	r.documents.set("data", "u1", "1Gi")
	if _, _, err := r.ask(pod("p1", "data")); err != nil {
		t.Fatal(err)
	}
	r.documents.setClass("data", "u1", "fast")
	_, _, err := r.askClass(pod("p2", "data"))
	if err == nil || !strings.Contains(err.Error(), `the storageClassName of the claim has changed from "" to "fast"`) {
		t.Errorf("another pod: %v", err)
	}
	r.settle() // follows the document
	if _, pv, err := r.askClass(pod("p1", "data")); err != nil || pv.Spec.Local == nil {
		t.Errorf("the pod that has it: %v, %v", pv, err)
	}
}

// The claim of a generic ephemeral volume may name a storage class too. Its volume is given up with the pod.
func TestAnEphemeralVolumeOfAStorageClassGoesWithItsPod(t *testing.T) {
	r := newRig(t)
	volumes := classVolumesOf{}
	r.cfg.Volumes = volumes
	r.loaded()
	p := ephemeral("p1")
	p.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.StorageClassName = ptr.To("fast")
	if _, pv, err := r.askClass(p); err != nil || pv == nil || len(volumes) != 1 {
		t.Fatalf("got %v, %v, volumes %v", pv, err, volumes)
	}
	if r.settle(); len(volumes) != 1 {
		t.Error("the volume of a pod that runs is given up")
	}
	r.end("p1")
	if r.settle(); len(volumes) != 0 || len(r.names()) != 0 {
		t.Errorf("left: %v, %q", volumes, r.names())
	}
}
