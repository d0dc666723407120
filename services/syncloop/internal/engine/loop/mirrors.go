package loop

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
)

// Mirrors has an API server show the pods of other sources; *mirrorpods.Manager does it. Its methods wait for nothing.
type Mirrors interface {
	// Want and Unwant take in the pods of other sources, Seen and Gone the mirror pods that the API server has.
	Want(pod *v1.Pod)
	Unwant(uid types.UID)
	Seen(mirror *v1.Pod)
	Gone(uid types.UID)
	// SetKnown says whether all mirror pods were told, and whether all pods of other sources were.
	SetKnown(mirrors, statics bool)
	// SetNode takes in the UID that the Node has in the API server.
	SetNode(uid types.UID)
}

// tellMirrors says how much is known of mirror pods, and of the pods that they are of.
func (l *Loop) tellMirrors() {
	l.cfg.Mirrors.SetKnown(l.configSynced && l.sources[podset.SourceAPI], l.allReady())
}

func isMirror(pod *v1.Pod) bool {
	_, mirror := pod.Annotations[podset.AnnotationMirror]
	return mirror
}

// mirror takes in a pod of another source than the API server's, whose mirror pod that is to show.
func (l *Loop) mirror(d *Desired) {
	if podset.IsStaticSource(d.Source) {
		l.cfg.Mirrors.Want(d.Pod)
	}
}
