package mirrorpods

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/podset"
)

// action is the action for a name.
type action string

const (
	// keep does nothing: everything is correct, or it is not known yet.
	keep action = "keep"
	// create creates the mirror pod.
	create action = "create"
	// remove deletes the mirror pod, because it belongs to no pod or to another one, or a user deleted it.
	remove action = "delete"
)

// facts is the input of decide.
type facts struct {
	// static is the pod to be mirrored, mirror the existing mirror pod; each may be nil.
	static, mirror *v1.Pod
	// node is the UID of the Node; empty while it does not exist in the API server.
	node types.UID
	// known is true if every mirror pod is known, complete if every static pod is known, ending while a pod other than
	// static that ran under the name is not gone.
	known, complete, ending bool
}

// decide returns the action for a name.
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
		return keep // The pod of the mirror pod still runs, and the next pod waits for its end.
	case f.mirror != nil &&
		(f.mirror.DeletionTimestamp != nil || !mirrors(f.mirror, f.static) || ownedByAnother(f.mirror, f.node)):
		return remove
	}
	return keep
}

// mirrors reports whether a mirror pod belongs to a static pod in its current version.
func mirrors(mirror, static *v1.Pod) bool {
	return mirror.Annotations[podset.AnnotationMirror] == static.Annotations[podset.AnnotationHash]
}

// ownedByAnother reports whether a mirror pod is owned by a deleted Node: it would be deleted together with that Node.
func ownedByAnother(mirror *v1.Pod, node types.UID) bool {
	for _, owner := range mirror.OwnerReferences {
		if owner.Kind == "Node" && node != "" && owner.UID != node {
			return true
		}
	}
	return false
}

// mirrorOf returns the mirror pod to create for a static pod.
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
