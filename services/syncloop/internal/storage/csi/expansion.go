package csi

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// notRequired is the annotation of a claim whose volume has been expanded completely by the cluster.
const notRequired = "volume.kubernetes.io/node-expansion-not-required"

// expansion is what a volume needs on this node.
type expansion struct {
	// size is the size to expand to.
	size resource.Quantity
	// begins is true if the claim must say that it begins. Older controllers do not know that.
	begins bool
	// said is true if the claim has the size already, because another node has expanded the volume.
	said bool
}

// expansionOf returns the expansion that a volume needs; nil if none, or if the cluster is not ready for it. present is
// the size that the volume has on this node; nil if it is just being mounted. The rules are the kubelet's.
func expansionOf(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, present *resource.Quantity) *expansion {
	wanted, told := pv.Spec.Capacity[v1.ResourceStorage], claim.Status.Capacity[v1.ResourceStorage]
	if present == nil {
		present = &told
	}
	if wanted.Cmp(*present) <= 0 {
		return nil
	}
	status, known := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	if !known && claim.Status.AllocatedResources == nil {
		return &expansion{size: wanted, said: told.Cmp(wanted) >= 0}
	}
	size := claim.Status.AllocatedResources[v1.ResourceStorage]
	switch {
	case told.Cmp(size) >= 0 && status == "":
		// The other nodes of a volume for many nodes have to expand their file systems too.
		if _, complete := claim.Annotations[notRequired]; complete || !hasMode(claim, v1.ReadWriteMany) {
			return nil
		}
		return &expansion{size: size, said: true}
	case status == v1.PersistentVolumeClaimNodeResizePending, status == v1.PersistentVolumeClaimNodeResizeInProgress:
		return &expansion{size: size, begins: true}
	}
	return nil
}

// isInfeasible reports whether an expansion that has failed for sure is not to be tried again with this size: because
// of the driver's answer, or because the user has asked for another size since it failed before.
func isInfeasible(claim *v1.PersistentVolumeClaim, size resource.Quantity, byAnswer, failedBefore bool) bool {
	requested := ptr.To(claim.Spec.Resources.Requests[v1.ResourceStorage])
	return byAnswer || failedBefore && requested.Cmp(size) != 0
}

func hasMode(claim *v1.PersistentVolumeClaim, mode v1.PersistentVolumeAccessMode) bool {
	for _, m := range claim.Spec.AccessModes {
		if m == mode {
			return true
		}
	}
	return false
}
