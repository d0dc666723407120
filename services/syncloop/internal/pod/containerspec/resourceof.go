package containerspec

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// ResourceOf is what a resourceFieldRef of a volume comes to, which names the container that it is of: the same text that an
// environment variable of that container has. Of the node it needs Capacity and Allocatable.
func ResourceOf(pod *v1.Pod, ref *v1.ResourceFieldSelector, node Node) (string, error) {
	c := containerOf(pod, ref.ContainerName)
	if c == nil {
		return "", fmt.Errorf("resourceFieldRef.containerName: the pod has no container %q", ref.ContainerName)
	}
	return resourceField(pod, c, ref, node)
}
