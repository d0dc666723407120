package nodeclaims

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The annotations of a bound claim that say whether its pods can write more than its size.
const (
	// AnnotationSizeEnforced is "true" if the file system limits them, and "false" if only its own size does.
	AnnotationSizeEnforced = "quartet.dev/size-enforced"
	// AnnotationSizeNotEnforced says why it is not enforced.
	AnnotationSizeNotEnforced = "quartet.dev/size-not-enforced"
)

// protectionFinalizer is the finalizer with which Kubernetes keeps a deleted claim that a pod uses.
const protectionFinalizer = "kubernetes.io/pvc-protection"

// key identifies a claim.
type key struct{ namespace, name string }

// String returns the name in the form of Kubernetes.
func (k key) String() string { return k.namespace + "/" + k.name }

func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.namespace, other.namespace), cmp.Compare(k.name, other.name))
}

// record is a claim with a directory. Its exported fields are on disk.
type record struct {
	// Claim is the last known document, with the UID that identifies the content.
	Claim *v1.PersistentVolumeClaim `json:"claim"`
	// Owner is the UID of the pod that the claim of a generic ephemeral volume belongs to; empty for others.
	Owner types.UID `json:"owner,omitempty"`
	// DeletedAt is set once the claim was deleted: no pod may begin to use it.
	DeletedAt *time.Time `json:"deletedAt,omitempty"`
	// CreatedAt is the time at which the directory was made.
	CreatedAt time.Time `json:"createdAt"`
	// Project is the project ID that limits the content; 0 if the directory was made where none can.
	Project uint32 `json:"project,omitempty"`

	// users are the pods that were given the claim by this process, and have not ended.
	users map[types.UID]bool
	// problem is why the claim cannot be changed or removed; nil if it can.
	problem error
	// unenforced is why the size of the claim is not enforced; nil if it is.
	unenforced error
	// made is true after this process has found or made the directory.
	made bool
}

// isDeleted reports whether the claim was deleted.
func (r *record) isDeleted() bool { return r.DeletedAt != nil }

// uid returns the UID of the claim.
func (r *record) uid() types.UID { return r.Claim.UID }

// size returns the size of the claim in bytes.
func (r *record) size() int64 { return r.Claim.Spec.Resources.Requests.Storage().Value() }

// pvName returns the name of the persistent volume of a claim, in the form of the provisioners of Kubernetes.
func pvName(uid types.UID) string { return "pvc-" + string(uid) }

// step is the next step of a claim with a directory.
type step int

// The steps.
const (
	// stay: nothing is to be done.
	stay step = iota
	// mark: the claim was deleted. It is marked, so that no pod begins to use it, even in a process that does not know of
	// the deletion.
	mark
	// remove: the claim was deleted, and no pod uses it.
	remove
)

// knowledge is what is known about the document of a claim.
type knowledge int

const (
	// unknown: configmux has not said whether there is such a claim.
	unknown knowledge = iota
	// present: there is the claim with the UID of the directory.
	present
	// absent: there is none, or one with another UID, which is another claim.
	absent
)

// decide returns the next step of a claim. The document is that of the claim or, for the claim of an ephemeral volume,
// the pod. It never removes a directory that may be in use, that was not marked before, or whose claim is unknown.
func decide(isDeleted bool, document knowledge, inUse bool) step {
	switch {
	case !isDeleted && document == absent:
		return mark
	case isDeleted && !inUse:
		return remove
	default:
		return stay
	}
}

// boundTo returns the claim as bound to its persistent volume, and that volume: the directory as a local volume.
func boundTo(r *record, dir string) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	claim := r.Claim.DeepCopy()
	capacity := v1.ResourceList{v1.ResourceStorage: claim.Spec.Resources.Requests[v1.ResourceStorage]}
	claim.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}
	claim.CreationTimestamp = metav1.NewTime(r.CreatedAt)
	if r.DeletedAt != nil {
		claim.DeletionTimestamp = &metav1.Time{Time: *r.DeletedAt}
		claim.Finalizers = []string{protectionFinalizer}
	}
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations[AnnotationSizeEnforced] = strconv.FormatBool(r.unenforced == nil)
	delete(claim.Annotations, AnnotationSizeNotEnforced)
	if r.unenforced != nil {
		claim.Annotations[AnnotationSizeNotEnforced] = r.unenforced.Error()
	}
	claim.Spec.VolumeName = pvName(r.uid())
	claim.Status = v1.PersistentVolumeClaimStatus{
		Phase: v1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: capacity,
	}
	filesystem := v1.PersistentVolumeFilesystem
	return claim, &v1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName, CreationTimestamp: claim.CreationTimestamp},
		Spec: v1.PersistentVolumeSpec{
			Capacity: capacity, AccessModes: claim.Spec.AccessModes, VolumeMode: &filesystem,
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			ClaimRef: &v1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: dir}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
}

// isExclusive reports whether only one pod may use a claim.
func isExclusive(claim *v1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod)
}

// claimsOf returns the claims that a pod's spec names, including those of its ephemeral volumes.
func claimsOf(pod *v1.Pod) []key {
	var keys []key
	for i := range pod.Spec.Volumes {
		if k, _, is := claimOf(pod, &pod.Spec.Volumes[i]); is && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// claimOf returns the claim that a volume of a pod names; is is false for a volume without one.
func claimOf(pod *v1.Pod, volume *v1.Volume) (k key, isEphemeral, is bool) {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return key{pod.Namespace, volume.PersistentVolumeClaim.ClaimName}, false, true
	case volume.Ephemeral != nil:
		return key{pod.Namespace, pod.Name + "-" + volume.Name}, true, true
	default:
		return key{}, false, false
	}
}
