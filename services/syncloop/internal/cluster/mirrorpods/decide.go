package mirrorpods

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/podset"
)

// action is what is to be done for a name.
type action string

const (
	// keep: nothing, all is as it should be, or it is not known yet whether it is.
	keep action = "keep"
	// create: a mirror pod is to be made.
	create action = "create"
	// remove: the mirror pod is to be deleted, since it is of no pod, of another one, or somebody wants it gone.
	remove action = "delete"
)

// facts is what decides about a name.
type facts struct {
	// static is the pod that is to be mirrored, mirror the mirror pod that there is; each may be nil.
	static, mirror *v1.Pod
	// node is the UID of the Node; empty while the API server does not have it.
	node types.UID
	// known is true when every mirror pod is known, complete when every static pod is, ending while another pod than static that ran
	// by the name is not gone.
	known, complete, ending bool
}

// decide says what is to be done for a name.
func decide(f facts) action {
	switch {
	case !f.known:
		return keep
	case f.static == nil && f.mirror != nil && f.complete && !f.ending:
		return remove
	case f.static == nil:
		return keep
	case f.mirror == nil && f.node != "":
		return create
	case f.mirror != nil && !mirrors(f.mirror, f.static) && f.ending:
		return keep // the pod that it is of still runs, and the next one waits for its end
	case f.mirror != nil && (f.mirror.DeletionTimestamp != nil || !mirrors(f.mirror, f.static) || ownedByAnother(f.mirror, f.node)):
		return remove
	}
	return keep
}

// mirrors tells whether a mirror pod is that of a static pod as it is now.
func mirrors(mirror, static *v1.Pod) bool {
	return mirror.Annotations[podset.AnnotationMirror] == static.Annotations[podset.AnnotationHash]
}

// ownedByAnother tells whether a mirror pod belongs to a Node that was deleted: it would be deleted with that at any moment.
func ownedByAnother(mirror *v1.Pod, node types.UID) bool {
	for _, owner := range mirror.OwnerReferences {
		if owner.Kind == "Node" && node != "" && owner.UID != node {
			return true
		}
	}
	return false
}

// mirrorOf returns the mirror pod to be made of a static pod.
func mirrorOf(static *v1.Pod, nodeName string, node types.UID) *v1.Pod {
	annotations := podset.StripOwnAnnotations(static.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	for _, key := range []string{podset.AnnotationSource, podset.AnnotationSeen, podset.AnnotationHash} {
		if value := static.Annotations[key]; value != "" {
			annotations[key] = value
		}
	}
	annotations[podset.AnnotationMirror] = static.Annotations[podset.AnnotationHash]
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: static.Name, Namespace: static.Namespace, Labels: maps.Clone(static.Labels), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1.SchemeGroupVersion.String(), Kind: "Node", Name: nodeName, UID: node, Controller: ptr.To(true),
			}},
		},
		Spec: *static.Spec.DeepCopy(),
	}
	pod.Spec.NodeName = nodeName
	return pod
}
