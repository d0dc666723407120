package containerspec

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// ResourceOf returns the value of a volume's resourceFieldRef, which names its container: the same text as in that
// container's environment. It needs only Capacity and Allocatable of the node.
func ResourceOf(pod *v1.Pod, ref *v1.ResourceFieldSelector, node Node) (string, error) {
	c := containerOf(pod, ref.ContainerName)
	if c == nil {
		return "", fmt.Errorf("resourceFieldRef.containerName: the pod has no container %q", ref.ContainerName)
	}
	return resourceField(pod, c, ref, node)
}
