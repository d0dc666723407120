// Package volumes sets up the volumes of pods before their containers start, and removes them after the containers are
// gone. A kind of volume is a [Plugin]. The path of a volume is the kubelet's:
//
//	ROOT/pods/UID/volumes/PLUGIN/NAME
//
// So the volumes of an earlier process are found by listing directories.
package volumes

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// Plugin is one kind of volume. Its methods are called concurrently, but not for the same volume. They may take long,
// and may hang in the kernel: only the volume waits for them.
type Plugin interface {
	// Name is the kubelet's directory of volumes of this kind, for example "kubernetes.io~empty-dir". One that contains a
	// slash is a path in the pod's directory, for example "volumeDevices/kubernetes.io~csi".
	Name() string
	// CanSupport reports whether a volume is of this kind.
	CanSupport(v *v1.Volume) bool
	// SetUp sets the volume up at Request.Dir, whose parent exists. It is called again after a failure, after a restart of
	// the process while containers use the volume, and, if Refreshes is true, to update it: correct content stays
	// unchanged. Its error is shown to the user after the volume's name: it contains the cause, and no secret.
	SetUp(ctx context.Context, r Request) error
	// TearDown unmounts and removes the result of SetUp at dir, even if that is incomplete. It receives only the path,
	// because the pod may be unknown. It never removes anything below a mount point that is still mounted: then it fails.
	// A missing volume is no error.
	TearDown(ctx context.Context, dir string) error
	// Refreshes reports whether the content of a volume can become outdated.
	Refreshes() bool
}

// Request is a volume to set up.
type Request struct {
	// Pod is the pod with the volume, and Volume the volume in its spec. Neither may be changed.
	Pod    *v1.Pod
	Volume *v1.Volume
	// Dir is the absolute path of the volume.
	Dir string
	// FSGroup is the group that owns the content of the volume, as the pod's containers see it: in a user namespace the
	// runtime maps the mounts. Nil leaves owners unchanged.
	FSGroup *int64
	// FSGroupChangePolicy determines when owners are changed; nil means Always.
	FSGroupChangePolicy *v1.PodFSGroupChangePolicy
}
