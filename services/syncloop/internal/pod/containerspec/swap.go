package containerspec

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// Swaps reports whether a container may swap: with limited swap on a machine with cgroup v2, containers of burstable
// pods whose request is below their limit. Critical pods do not swap, because it would slow them down.
func Swaps(pod *v1.Pod, c *v1.Container, node Node) bool {
	return node.LimitedSwap && node.SwapLimit && node.CgroupV2 && !admission.IsCritical(pod, podset.IsStatic(pod)) &&
		qos.GetPodQOS(pod) == v1.PodQOSBurstable && c.Resources.Requests.Memory().Cmp(*c.Resources.Limits.Memory()) != 0
}

// swapLimit returns the swap limit of a container in bytes: the machine's swap space in proportion to the memory
// request for containers that may swap, and otherwise none.
func swapLimit(pod *v1.Pod, c *v1.Container, node Node) int64 {
	request, memory := c.Resources.Requests.Memory(), node.Capacity.Memory().Value()
	if !Swaps(pod, c, node) || memory <= 0 || request.Value() > memory {
		return 0
	}
	return int64(float64(request.Value()) / float64(memory) * float64(node.SwapCapacity))
}
