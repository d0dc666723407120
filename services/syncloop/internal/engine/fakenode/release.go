package fakenode

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReleasePod implements podworkers.Runtime. Released returns the released pods; Calls omits them, because every pod
// that ends is released.
func (n *Node) ReleasePod(_ context.Context, pod *v1.Pod) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if runs(n.pods[pod.UID]) {
		n.broken = append(n.broken, fmt.Sprintf("pod %s was released while it ran", pod.UID))
	}
	if n.script.Release != nil {
		if err := n.script.Release(pod); err != nil {
			return err
		}
	}
	n.released = append(n.released, pod.UID)
	return nil
}

// Released returns the pods whose resources were released, in the order of the calls.
func (n *Node) Released() []types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.released)
}
