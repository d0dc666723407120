package containerspec

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubectl/pkg/util/qos"
)

// Limits of the kernel, and the conversions between Kubernetes' CPUs and the kernel's shares and quotas.
const (
	minShares        = 2
	maxShares        = 262144
	sharesPerCPU     = 1024
	defaultCPUPeriod = 100 * time.Millisecond
	minQuotaMicros   = 1000
)

// linuxResources returns the runtime's resources. A nil request defaults to the limit.
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
	if node.CgroupV2 && node.GroupOOMKill {
		r.Unified = map[string]string{"memory.oom.group": "1"}
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

// Resources returns the runtime's resources of a container. The resources of c may differ from those in the spec of
// pod.
func Resources(pod *v1.Pod, c *v1.Container, node Node) *runtimeapi.LinuxContainerResources {
	var request *resource.Quantity
	if q, ok := c.Resources.Requests[v1.ResourceCPU]; ok {
		request = &q
	}
	r := linuxResources(request, limitOf(pod, c, v1.ResourceCPU), limitOf(pod, c, v1.ResourceMemory), node)
	r.OomScoreAdj = oomScoreAdj(pod, c, node.Capacity.Memory().Value())
	r.HugepageLimits = hugePages(pod, c, node.HugePages)
	if !node.CgroupV2 {
		if node.SwapLimit {
			r.MemorySwapLimitInBytes = r.MemoryLimitInBytes // memory and swap together
		}
		return r
	}
	if r.Unified == nil {
		r.Unified = map[string]string{}
	}
	if node.SwapLimit {
		r.Unified["memory.swap.max"] = strconv.FormatInt(swapLimit(pod, c, node), 10)
	}
	maps.Copy(r.Unified, memoryQoS(pod, c, node))
	return r
}

// limitOf returns a container's limit, or else the pod's, which bounds each container.
func limitOf(pod *v1.Pod, c *v1.Container, name v1.ResourceName) *resource.Quantity {
	limit := c.Resources.Limits[name]
	if limit.IsZero() && resourcehelper.IsPodLevelResourcesSet(pod) {
		limit = pod.Spec.Resources.Limits[name]
	}
	return &limit
}

// hugePages returns the limits of a container for each size of the machine: its own, or else the pod's, or else zero.
func hugePages(pod *v1.Pod, c *v1.Container, sizes []string) []*runtimeapi.HugepageLimit {
	limits := map[string]uint64{}
	put := func(list v1.ResourceList) {
		for name, quantity := range list {
			if size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
				limits[pageSize(size)] = uint64(max(0, quantity.Value()))
			}
		}
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		put(pod.Spec.Resources.Limits)
	}
	put(c.Resources.Limits)
	var out []*runtimeapi.HugepageLimit
	for _, size := range sizes {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: size, Limit: limits[size]})
	}
	return out
}

// pageSize returns a size of huge pages in the form of the kernel's cgroups, for example 2MB; empty if it is invalid.
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
	// nodeCritical is the lowest priority of pods that are killed last, regardless of their usage.
	nodeCritical = 2000001000
)

// oomScoreAdj returns the OOM score adjustment of a container, from -1000 to 1000. Best-effort containers are killed
// first, and guaranteed ones last; between them, a container is killed the earlier the more of the machine's memory (in
// bytes) it may use beyond its request.
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
	request := c.Resources.Requests.Memory().Value() + shareOfPod(pod)
	for i := range pod.Spec.InitContainers {
		if sidecar := &pod.Spec.InitContainers[i]; sidecar.Name == c.Name && sidecar.RestartPolicy != nil {
			// a sidecar is not killed before the containers that it serves
			request = max(request, leastRequest(pod)+shareOfPod(pod))
		}
	}
	if capacity <= 0 {
		return bestEffortOOMScore - 1
	}
	score := 1000 - 1000*request/capacity
	return min(max(score, 1000+guaranteedOOMScore), bestEffortOOMScore-1)
}

// shareOfPod returns a container's equal part of the memory, in bytes, that its pod requests beyond its containers'
// requests.
func shareOfPod(pod *v1.Pod) int64 {
	if !resourcehelper.IsPodLevelRequestsSet(pod) || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	requested := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	beyond := pod.Spec.Resources.Requests.Memory().Value() - requested.Memory().Value()
	return max(beyond, 0) / int64(max(len(pod.Spec.Containers)+len(pod.Spec.InitContainers), 1))
}

func leastRequest(pod *v1.Pod) int64 {
	var lowest int64
	for i := range pod.Spec.Containers {
		if request := pod.Spec.Containers[i].Resources.Requests.Memory().Value(); i == 0 || request < lowest {
			lowest = request
		}
	}
	return lowest
}
