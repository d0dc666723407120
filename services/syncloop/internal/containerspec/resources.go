package containerspec

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubectl/pkg/util/qos"
)

// Limits of the kernel, and the numbers between Kubernetes' CPUs and the kernel's shares and quotas.
const (
	minShares        = 2
	maxShares        = 262144
	sharesPerCPU     = 1024
	defaultCPUPeriod = 100 * time.Millisecond
	minQuotaMicros   = 1000
)

// linuxResources makes the runtime's resources. A nil request is the limit's.
func linuxResources(request, limit, memory *resource.Quantity, node Node) *runtimeapi.LinuxContainerResources {
	r := &runtimeapi.LinuxContainerResources{CpuShares: minShares}
	if request == nil && !limit.IsZero() {
		request = limit
	}
	if request != nil && request.MilliValue() > 0 {
		r.CpuShares = min(max(request.MilliValue()*sharesPerCPU/1000, minShares), maxShares)
	}
	if memory.Value() > 0 {
		r.MemoryLimitInBytes = memory.Value()
	}
	if node.CPUQuota {
		period := node.CPUPeriod
		if period <= 0 {
			period = defaultCPUPeriod
		}
		r.CpuPeriod = period.Microseconds()
		if milli := limit.MilliValue(); milli > 0 {
			r.CpuQuota = max(milli*r.CpuPeriod/1000, minQuotaMicros)
		}
	}
	return r
}

// containerResources makes the runtime's resources of one container.
func containerResources(pod *v1.Pod, c *v1.Container, node Node) *runtimeapi.LinuxContainerResources {
	var request *resource.Quantity
	if q, ok := c.Resources.Requests[v1.ResourceCPU]; ok {
		request = &q
	}
	r := linuxResources(request, c.Resources.Limits.Cpu(), c.Resources.Limits.Memory(), node)
	r.OomScoreAdj = oomScoreAdj(pod, c, node.Capacity.Memory().Value())
	for name, quantity := range c.Resources.Limits {
		if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
			if text := pageSize(size); text != "" {
				r.HugepageLimits = append(r.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: text, Limit: uint64(max(0, quantity.Value()))})
			}
		}
	}
	return r
}

// pageSize is a size of huge pages as the kernel's cgroups name it, for example 2MB; empty when it is none.
func pageSize(text string) string {
	size, err := resource.ParseQuantity(text)
	if err != nil || size.Value() <= 0 {
		return ""
	}
	value, units := size.Value(), []string{"B", "KB", "MB", "GB", "TB"}
	for value >= 1024 && value%1024 == 0 && len(units) > 1 {
		value, units = value/1024, units[1:]
	}
	return fmt.Sprintf("%d%s", value, units[0])
}

const (
	guaranteedOOMScore = -997
	bestEffortOOMScore = 1000
	// nodeCritical is the priority from which on a pod is killed last, whatever it uses.
	nodeCritical = 2000001000
)

// oomScoreAdj is how much sooner (up to 1000) or later (down to -1000) than others the kernel kills a container when
// memory runs out: first who promised nothing, last who has what it asked for; between them the more it may use of the
// machine's memory (in bytes) beyond its request, the sooner.
func oomScoreAdj(pod *v1.Pod, c *v1.Container, capacity int64) int64 {
	if pod.Spec.Priority != nil && *pod.Spec.Priority >= nodeCritical {
		return guaranteedOOMScore
	}
	switch qos.GetPodQOS(pod) {
	case v1.PodQOSGuaranteed:
		return guaranteedOOMScore
	case v1.PodQOSBestEffort:
		return bestEffortOOMScore
	case v1.PodQOSBurstable:
	}
	request := c.Resources.Requests.Memory().Value()
	for i := range pod.Spec.InitContainers {
		if sidecar := &pod.Spec.InitContainers[i]; sidecar.Name == c.Name && sidecar.RestartPolicy != nil {
			request = max(request, leastRequest(pod)) // a sidecar is not killed before those that it serves
		}
	}
	if capacity <= 0 {
		return bestEffortOOMScore - 1
	}
	score := 1000 - 1000*request/capacity
	return min(max(score, 1000+guaranteedOOMScore), bestEffortOOMScore-1)
}

func leastRequest(pod *v1.Pod) int64 {
	var least int64
	for i := range pod.Spec.Containers {
		if request := pod.Spec.Containers[i].Resources.Requests.Memory().Value(); i == 0 || request < least {
			least = request
		}
	}
	return least
}
