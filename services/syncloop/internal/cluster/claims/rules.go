package claims

import (
	"crypto/sha256"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"google.golang.org/grpc/codes"
)

// protectionFinalizer keeps a deleted claim until no pod uses it.
const protectionFinalizer = "kubernetes.io/pvc-protection"

// AttachmentName returns the name of the VolumeAttachment of a volume and a node, as the cluster's controller makes it.
func AttachmentName(driver, handle, nodeName string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+nodeName)))
}

// usable fails with the cause if the volume of a claim cannot be used.
func usable(claim *v1.PersistentVolumeClaim) (Cause, error) {
	switch {
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, protectionFinalizer):
		return CauseDeleting, fmt.Errorf("PVC is being deleted")
	case claim.Status.Phase == v1.ClaimLost:
		return CauseLost, fmt.Errorf("PVC is not bound: it is lost, because its volume %q is gone", claim.Spec.VolumeName)
	case claim.Status.Phase != v1.ClaimBound:
		return CauseNotBound, fmt.Errorf("PVC is not bound")
	case claim.Spec.VolumeName == "":
		return CauseNotBound, fmt.Errorf("PVC has empty pvc.Spec.VolumeName")
	}
	return "", nil
}

// owned fails if the claim of an ephemeral volume was not created for the pod.
func owned(claim *v1.PersistentVolumeClaim, pod *v1.Pod) error {
	if claim.Namespace == pod.Namespace && metav1.IsControlledBy(claim, pod) {
		return nil
	}
	return fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", claim.Namespace, claim.Name, pod.Namespace, pod.Name)
}

// belongs fails with the cause if a volume is not that of a claim, or is nothing.
func belongs(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) (Cause, error) {
	switch ref := volume.Spec.ClaimRef; {
	case ref == nil:
		return CauseMismatch, fmt.Errorf("found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim", volume.Name)
	case ref.UID != claim.UID:
		return CauseMismatch, fmt.Errorf("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s", volume.Name, ref.UID, claim.UID)
	case volume.Spec.PersistentVolumeSource == v1.PersistentVolumeSource{}:
		return CauseNoSource, fmt.Errorf("found PV object %s but it has no source of a kind that is known here", volume.Name)
	}
	return "", nil
}

// attached fails with the cause unless a volume is attached. The driver is nil if the cluster has no object of it.
func attached(attachment *storagev1.VolumeAttachment, handle string, driver *storagev1.CSIDriver) (Cause, error) {
	failure := attachment.Status.AttachError
	switch {
	case attachment.DeletionTimestamp != nil:
		return CauseNotAttached, fmt.Errorf("volume attachment is being deleted")
	case attachment.Status.Attached:
		return "", nil
	case failure == nil:
		return CauseNotAttached, fmt.Errorf("volume %v is not attached for volume attachment %v", handle, attachment.Name)
	case isExhausted(failure) && refreshesLimit(driver):
		return CauseLimitExceeded, fmt.Errorf("%s", failure.Message)
	}
	return CauseAttachFailed, fmt.Errorf("%s", failure.Message)
}

// isExhausted reports whether a driver has no place for another volume on the node.
func isExhausted(failure *storagev1.VolumeError) bool {
	return failure.ErrorCode != nil && *failure.ErrorCode == int32(codes.ResourceExhausted)
}

// refreshesLimit reports whether the limit of a driver is kept up to date. Only then a kubelet rejects a pod beyond it.
func refreshesLimit(driver *storagev1.CSIDriver) bool {
	return driver != nil && driver.Spec.NodeAllocatableUpdatePeriodSeconds != nil &&
		*driver.Spec.NodeAllocatableUpdatePeriodSeconds != 0
}

// needsAttachment reports whether volumes of a driver are attached to nodes. As in a kubelet, they are if the cluster
// has no object of the driver.
func needsAttachment(driver *storagev1.CSIDriver) bool {
	return driver == nil || driver.Spec.AttachRequired == nil || *driver.Spec.AttachRequired
}
