package containerspec

import (
	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// memoryQoS returns the settings of cgroup v2 that protect and throttle the memory of a container below its limit. They
// also take those of an earlier configuration back when a container is resized.
func memoryQoS(pod *v1.Pod, c *v1.Container, node Node) map[string]string {
	if !node.MemoryQoS.Enabled {
		return map[string]string{resources.MemoryHigh: "max"}
	}
	request, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	settings := node.MemoryQoS.Protection(pod, request)
	if settings == nil {
		settings = map[string]string{resources.MemoryMin: "0", resources.MemoryLow: "0"}
	}
	switch {
	case request == limit && request != 0:
		return settings
	case limit == 0 && resourcehelper.IsPodLevelResourcesSet(pod) && !pod.Spec.Resources.Limits.Memory().IsZero():
		return settings // the pod's cgroup throttles its containers
	case limit == 0:
		limit = node.MemoryForPods
	}
	if high := node.MemoryQoS.High(request, limit); high != "" {
		settings[resources.MemoryHigh] = high
	}
	return settings
}
