package nodeclaims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/nodevolumes"
)

// noProvisioner is the provisioner of classes whose volumes nobody makes.
const noProvisioner = "kubernetes.io/no-provisioner"

// className returns the name of the storage class of a claim; empty for a claim that is a directory.
func className(claim *v1.PersistentVolumeClaim) string {
	return ptr.Deref(claim.Spec.StorageClassName, "")
}

// hasClass reports whether the claim has a volume of a storage class, and not a directory.
func (r *record) hasClass() bool { return className(r.Claim) != "" }

// claim returns the claim without a status.
func (r *record) claim() *v1.PersistentVolumeClaim {
	claim := r.Claim.DeepCopy()
	claim.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}
	claim.CreationTimestamp = metav1.NewTime(r.CreatedAt)
	if r.DeletedAt != nil {
		claim.DeletionTimestamp = &metav1.Time{Time: *r.DeletedAt}
		claim.Finalizers = []string{protectionFinalizer}
	}
	return claim
}

// begin lets the volumes of claims be made whose storage class does not wait for a pod, and reports whether that has
// succeeded. A claim that may still be replaced by one of another source is not begun.
func (c *Claims) begin() bool {
	if c.documents.Unread() != "" {
		return true // it is looked at again
	}
	done := true
	for _, claim := range c.documents.Claims() {
		k := key{claim.Namespace, claim.Name}
		known := c.records[k]
		if className(claim) == "" || !c.bindsAtOnce(className(claim)) ||
			known != nil && (known.uid() != claim.UID || known.isDeleted() || !known.hasClass()) {
			continue
		}
		if known == nil {
			var err error
			if known, err = c.renewed(k, nil, &record{Claim: claim}); err != nil {
				c.cfg.Logger.Warn("the record of a claim cannot be written; it is tried again",
					keyClaim, k, telemetry.KeyError, err)
				done = false
				continue
			}
		}
		if c.cfg.Volumes.Known(known.uid()).PV == nil {
			c.cfg.Volumes.Begin(known.claim())
		}
	}
	return done
}

// bindsAtOnce reports whether claims of a storage class get their volumes without waiting for a pod.
func (c *Claims) bindsAtOnce(name string) bool {
	class, err := c.documents.StorageClass(name)
	return err == nil && class.Provisioner != noProvisioner &&
		ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingImmediate
}

// classBound returns a claim as bound to a volume of its storage class, or as pending if there is none.
func classBound(claim *v1.PersistentVolumeClaim, volume nodevolumes.Volume) *v1.PersistentVolumeClaim {
	claim.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending}
	if volume.PV == nil {
		return claim
	}
	claim.Spec.VolumeName = volume.PV.Name
	claim.Status = v1.PersistentVolumeClaimStatus{
		Phase: v1.ClaimBound, AccessModes: volume.PV.Spec.AccessModes,
		Capacity: v1.ResourceList{v1.ResourceStorage: volume.Capacity},
	}
	return claim
}

// provided returns a claim with the volume of its storage class. It waits for the driver in the goroutine of the
// caller, which is the pod's.
func (c *Claims) provided(
	ctx context.Context, claim *v1.PersistentVolumeClaim,
) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	volume, err := c.cfg.Volumes.Provide(ctx, claim)
	if err != nil {
		return nil, nil, err
	}
	return classBound(claim, volume), volume.PV, nil
}

// checkUnchanged returns an error if a document with the UID of a known claim is another kind of volume now: a manifest
// was edited, and the claim has data.
func checkUnchanged(known *record, document *v1.PersistentVolumeClaim) error {
	if known == nil {
		return nil
	}
	for _, field := range []struct{ name, before, now string }{
		{"storageClassName", className(known.Claim), className(document)},
		{"volumeMode", string(modeOf(known.Claim)), string(modeOf(document))},
	} {
		if field.before != field.now {
			return fmt.Errorf("the %s of the claim has changed from %q to %q, and its data are in the old volume: change it back, or delete the claim and make it again",
				field.name, field.before, field.now)
		}
	}
	return nil
}

func modeOf(claim *v1.PersistentVolumeClaim) v1.PersistentVolumeMode {
	return ptr.Deref(claim.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
}

// hasVolume reports whether a pod has a directory, or the link of a block device, for the volume of a claim.
func (c *Claims) hasVolume(pod string, r *record) (bool, error) {
	paths := []string{filepath.Join(localVolumes, pvName(r.uid()))}
	if r.hasClass() {
		pv := c.cfg.Volumes.Known(r.uid()).PV
		if pv == nil {
			return false, nil
		}
		paths = []string{filepath.Join(classVolumes, pv.Name), filepath.Join(classDevices, pv.Name)}
	}
	for _, path := range paths {
		_, err := os.Lstat(filepath.Join(c.cfg.PodsDir, pod, path))
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}

// giveUp takes the first step of the removal of a deleted claim that no pod uses.
func (c *Claims) giveUp(k key, r *record) error {
	if r.hasClass() {
		return c.cfg.Volumes.Release(r.uid())
	}
	return c.disk.moveAway(k)
}
