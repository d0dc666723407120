package containerspec

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// swapLimit is how many bytes of a container may be swapped: with limited swap the part of the machine's swap space that the
// container's request is of its memory, for containers of burstable pods that request less than their limit; otherwise none. A pod
// that the node cannot do without is not slowed down by swapping.
func swapLimit(pod *v1.Pod, c *v1.Container, node Node) int64 {
	if !node.LimitedSwap || admission.IsCritical(pod, podset.IsStatic(pod)) || qos.GetPodQOS(pod) != v1.PodQOSBurstable {
		return 0
	}
	request, limit, memory := c.Resources.Requests.Memory(), c.Resources.Limits.Memory(), node.Capacity.Memory().Value()
	if request.Cmp(*limit) == 0 || memory <= 0 || request.Value() > memory {
		return 0
	}
	return int64(float64(request.Value()) / float64(memory) * float64(node.SwapCapacity))
}
