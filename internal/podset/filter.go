package podset

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Rejection is a pod that was removed from its source's set.
type Rejection struct {
	// Index is the pod's position in the input.
	Index int
	// Pod is the rejected pod.
	Pod *v1.Pod
	// By is the pod with which it collides.
	By *v1.Pod
	// Field is the path of the duplicate field: "metadata.name" or "metadata.uid".
	Field string
	// Reason describes the collision.
	Reason string
}

// Filter rejects each pod that has the namespace and name, or the UID, of one before it. Only the order of the input
// decides, so that a restarted process keeps the same pods.
func Filter(pods []*v1.Pod) (kept []*v1.Pod, rejected []Rejection) {
	names := make(map[types.NamespacedName]*v1.Pod, len(pods))
	uids := make(map[types.UID]*v1.Pod, len(pods))
	kept = make([]*v1.Pod, 0, len(pods))
	for i, pod := range pods {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if by, repeated := names[name]; repeated {
			rejected = append(rejected, Rejection{
				Index: i, Pod: pod, By: by, Field: "metadata.name",
				Reason: fmt.Sprintf("the pod %s is already given", name),
			})
			continue
		}
		if by, repeated := uids[pod.UID]; repeated {
			rejected = append(rejected, Rejection{
				Index: i, Pod: pod, By: by, Field: "metadata.uid",
				Reason: fmt.Sprintf("the pod %s/%s already has the UID %s", by.Namespace, by.Name, pod.UID),
			})
			continue
		}
		names[name], uids[pod.UID] = pod, pod
		kept = append(kept, pod)
	}
	return kept, rejected
}
