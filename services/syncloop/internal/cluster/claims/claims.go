// Package claims provides the persistent volumes of pods: their claims, the volumes that these are bound to, the CSI
// drivers of the cluster, the attachments of volumes to this node, and the secrets that volumes name. [Cluster] has
// them from the API server, [None] is for a node without any. Nothing is mounted here.
//
// The node authorizer decides how objects are read. A node may only get single claims, volumes and attachments, those
// of its pods; it may neither list nor watch them. So they are polled: often while a pod waits for one of them to
// change, otherwise once a minute as by a kubelet, which gets them in each sync of a pod. A secret is requested when it
// is needed, and not kept; while a driver refuses it, it is polled for another version. CSIDriver objects are listed
// and watched. A configmux of a site, see [Shared], has the claims, their volumes and the secrets, and says when one of
// them changes; CSIDriver objects and attachments come from the API server all the same.
//
// The rules and the texts of errors are the kubelet's. No error and no log line contains a value of a secret.
package claims

import (
	"context"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podobjects"
)

// Source provides what the cluster knows about persistent volumes. Its methods may be called from any goroutine. The
// returned objects must not be changed. Errors are mostly of the type *Error.
type Source interface {
	// Use registers a pod with the claims and secrets that its spec names. From then on it is notified when something has
	// changed that it waits for, or that its volumes depend on.
	Use(pod *v1.Pod)
	// Forget removes a pod.
	Forget(uid types.UID)
	// Claim returns the claim of a volume of a pod, of the kind persistentVolumeClaim or ephemeral, and the persistent
	// volume that it is bound to. It fails unless a pod may use both. The node affinity of the volume is not checked.
	Claim(ctx context.Context, pod *v1.Pod, volume *v1.Volume) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error)
	// Driver returns the object of a CSI driver; nil without an error if the cluster has none.
	Driver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	// Attachment returns the publish context of a volume that is attached to this node; nil without an error if volumes of
	// the driver need no attachment. It fails until the volume is attached. What it returns may be old: the volume may
	// have been detached since.
	Attachment(ctx context.Context, driver, handle string) (map[string]string, error)
	// AttachmentNow does what Attachment does, and asks the API server each time.
	AttachmentNow(ctx context.Context, driver, handle string) (map[string]string, error)
	// Secret returns a secret that a persistent volume or a CSI volume of a pod names.
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// Refused records that a driver's call for a volume of a pod has failed with a secret. The pod is notified when the
	// secret has changed.
	Refused(pod types.UID, secret *v1.Secret)
	// Accepted records that a pod does not wait for a change of a secret any more.
	Accepted(pod types.UID, namespace, name string)
	Expansion
}

// Expansion records the progress of an expansion on this node in the status of a claim. Each method returns the claim
// with its new status, and fails if another has changed the claim in the meantime: get it again then.
type Expansion interface {
	// MarkExpanding records that the expansion on the node begins.
	MarkExpanding(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error)
	// MarkExpanded records the size of the expanded volume, and that nothing is left to do.
	MarkExpanded(ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity) (*v1.PersistentVolumeClaim,
		error)
	// MarkExpansionFailed records why an expansion has failed. If it is infeasible, it is not retried until the user has
	// changed the claim.
	MarkExpansionFailed(ctx context.Context, claim *v1.PersistentVolumeClaim, cause error, infeasible bool) (
		*v1.PersistentVolumeClaim, error)
}

// ClaimName returns the name of the claim of a volume: that which it names, or for an ephemeral volume the pod's and
// the volume's name. It is empty for other kinds of volumes.
func ClaimName(pod *v1.Pod, volume *v1.Volume) (name string, ephemeral bool) {
	return podobjects.ClaimName(pod, volume)
}
