package apiobject

import (
	"crypto/sha256"
	"fmt"

	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// prepareClaim applies the defaults of a claim, and sets the UID of a claim of a manifest. localsource gives an applied
// claim a UID of its own.
func (o *Object) prepareClaim() {
	o.Claim.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: string(Claim)}
	o.Claim.Status = v1.PersistentVolumeClaimStatus{}
	o.Claim.UID = manifestUID(o.Key())
	corev1.SetObjectDefaults_PersistentVolumeClaim(o.Claim)
}

// IsApplied reports whether the object is a claim with a UID of its own, which an applied claim has.
func (o *Object) IsApplied() bool { return o.Claim != nil && o.Claim.UID != manifestUID(o.Key()) }

// WithUID returns a copy of a claim with another UID.
func (o *Object) WithUID(uid types.UID) *Object {
	claim := o.Claim.DeepCopy()
	claim.UID = uid
	return &Object{Claim: claim}
}

// manifestUID returns the UID of a claim of a manifest. It depends on the claim's name alone, because the UID
// identifies the claim's data: neither an edited manifest, a document that is moved to another file, nor a lost
// checkpoint may make it another claim.
func manifestUID(key Key) types.UID {
	sum := sha256.Sum256([]byte(key.Path()))
	return types.UID(uuid.UUID(sum[:16]).String())
}

// validateClaim returns the validation errors of an API server, and those of a node without one.
func (o *Object) validateClaim(old *Object) field.ErrorList {
	var internal, before core.PersistentVolumeClaim
	if err := convertClaim(o.Claim, &internal); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	if old == nil {
		options := validation.ValidationOptionsForPersistentVolumeClaim(&internal, nil)
		errs := validation.ValidatePersistentVolumeClaim(&internal, options)
		return append(errs, CheckClaimSpec(&o.Claim.Spec, field.NewPath("spec"))...)
	}
	if err := convertClaim(old.Claim, &before); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	align(&internal.ObjectMeta, &before.ObjectMeta)
	internal.UID = before.UID
	// A claim of the node may always change its size, as a bound one of an API server may.
	internal.Status.Phase, before.Status.Phase = core.ClaimBound, core.ClaimBound
	// The library compares with the old size, which may also shrink here: a directory does not lose data by that.
	before.Spec.Resources.Requests = internal.Spec.Resources.Requests.DeepCopy()
	options := validation.ValidationOptionsForPersistentVolumeClaim(&internal, &before)
	return validation.ValidatePersistentVolumeClaimUpdate(&internal, &before, options)
}

func convertClaim(claim *v1.PersistentVolumeClaim, into *core.PersistentVolumeClaim) error {
	err := corev1.Convert_v1_PersistentVolumeClaim_To_core_PersistentVolumeClaim(claim.DeepCopy(), into, nil)
	if err != nil {
		return fmt.Errorf("cannot convert the claim: %w", err)
	}
	return nil
}

// CheckClaimSpec returns what a node without an API server cannot do for a claim: it has directories of its own and the
// volumes of its storage classes, and neither volumes to choose from, nor snapshots. A directory is no block device.
// The class need not exist yet. It serves claims and the templates of generic ephemeral volumes.
func CheckClaimSpec(spec *v1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	refuse := func(condition bool, name, why string) {
		if condition {
			errs = append(errs, field.Forbidden(path.Child(name), why))
		}
	}
	const none = "a node without an API server has no %s: leave the field out"
	hasClass := spec.StorageClassName != nil && *spec.StorageClassName != ""
	refuse(spec.VolumeName != "", "volumeName", fmt.Sprintf(none, "persistent volumes to choose from"))
	refuse(spec.Selector != nil, "selector", fmt.Sprintf(none, "persistent volumes to choose from"))
	refuse(spec.DataSource != nil, "dataSource", fmt.Sprintf(none, "sources of data"))
	refuse(spec.DataSourceRef != nil && spec.DataSource == nil, "dataSourceRef", fmt.Sprintf(none, "sources of data"))
	refuse(spec.VolumeAttributesClassName != nil, "volumeAttributesClassName", fmt.Sprintf(none, "classes of attributes"))
	refuse(!hasClass && spec.VolumeMode != nil && *spec.VolumeMode != v1.PersistentVolumeFilesystem, "volumeMode",
		"a claim without a storageClassName is a directory of the node, not a block device: name a StorageClass, or leave the field out")
	return errs
}
