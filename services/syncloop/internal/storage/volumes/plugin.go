// Package volumes has the volumes of pods in place on the node before their containers start, and removes them when those are
// gone. A kind of volume is a [Plugin]; where a volume is on disk is where a kubelet has it:
//
//	ROOT/pods/UID/volumes/PLUGIN/NAME
//
// so that what an earlier process has mounted is found again by looking.
package volumes

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// Plugin is one kind of volume. Its methods are called from any goroutine, for one volume by one at a time. They may take long,
// and may hang in the kernel: nothing but the volume waits for them.
type Plugin interface {
	// Name is the folder that volumes of this kind are in, the kubelet's, for example "kubernetes.io~empty-dir".
	Name() string
	// CanSupport tells whether a volume is of this kind.
	CanSupport(v *v1.Volume) bool
	// SetUp has the volume in place at Request.Dir, whose parent is there. It is called again after a failure, after a restart of
	// the process while containers use the volume, and, when Refreshes, to bring it up to date: what is right already stays as it
	// is. An error of it is told to the user, after the volume's name: it says the cause, and no secret.
	SetUp(ctx context.Context, r Request) error
	// TearDown unmounts and removes what SetUp has made at dir, however far that came. It is given only the path, for the pod may
	// be forgotten. It never removes anything below a mount point that is still mounted: then it fails. That nothing is there is
	// no error.
	TearDown(ctx context.Context, dir string) error
	// Refreshes tells whether the content of a volume that is in place can get out of date.
	Refreshes() bool
}

// Request is a volume that is to be in place.
type Request struct {
	// Pod is the pod that has the volume, Volume the one in its spec. Both are only read.
	Pod    *v1.Pod
	Volume *v1.Volume
	// Dir is where the volume is to be, an absolute path.
	Dir string
	// FSGroup is the group that owns what is in the volume, as the pod's containers know it: in a user namespace the runtime maps
	// the mounts. Nil leaves owners as they are.
	FSGroup *int64
	// FSGroupChangePolicy says when owners are changed; nil is Always.
	FSGroupChangePolicy *v1.PodFSGroupChangePolicy
}
