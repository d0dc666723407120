package persistentvolumes

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// HostPath is the [Kind] for persistent volumes that are a path of the node (hostPath). As in the kubelet, nothing is
// mounted, and neither mount options nor fsGroup apply.
type HostPath struct{ volumes.HostPath }

// Supports implements Kind.
func (HostPath) Supports(pv *v1.PersistentVolume) bool { return pv.Spec.HostPath != nil }

// Inline implements Kind. volumes.HostPath has the volumes of a pod's spec.
func (HostPath) Inline(*v1.Volume) bool { return false }

// Mount implements Kind. It checks that the path has the type of the volume, or creates it.
func (h HostPath) Mount(ctx context.Context, r Request) (string, error) {
	if r.Block {
		return "", errors.New("a hostPath volume cannot have volumeMode Block")
	}
	volume := &v1.Volume{Name: r.PV.Name, VolumeSource: v1.VolumeSource{HostPath: r.PV.Spec.HostPath}}
	err := h.SetUp(ctx, volumes.Request{Pod: r.Pod, Volume: volume, Dir: r.Dir})
	return r.PV.Spec.HostPath.Path, err
}

// Unmount implements Kind. It is a no-op because the path belongs to the node.
func (HostPath) Unmount(context.Context, string) error { return nil }
