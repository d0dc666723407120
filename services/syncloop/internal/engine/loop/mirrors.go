package loop

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
)

// Mirrors shows the pods of other sources in an API server. Its methods do not block.
type Mirrors interface {
	// Want and Unwant take the pods of other sources, Seen and Gone the mirror pods of the API server.
	Want(pod *v1.Pod)
	Unwant(uid types.UID)
	Seen(mirror *v1.Pod)
	Gone(uid types.UID)
	// SetKnown sets whether all mirror pods are known, and whether all pods of other sources are.
	SetKnown(mirrors, statics bool)
	// SetNode sets the UID of the Node in the API server.
	SetNode(uid types.UID)
}

// reportMirrors reports how much is known of mirror pods and static pods.
func (l *Loop) reportMirrors() {
	l.cfg.Mirrors.SetKnown(l.configSynced && l.sources[podset.SourceAPI], l.allReady())
}

func isMirror(pod *v1.Pod) bool {
	_, mirror := pod.Annotations[podset.AnnotationMirror]
	return mirror
}

// mirror records a pod whose mirror pod the API server is to show.
func (l *Loop) mirror(d *Desired) {
	if podset.IsStaticSource(d.Source) {
		l.cfg.Mirrors.Want(d.Pod)
	}
}
