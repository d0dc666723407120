// Package resources computes the weights, quotas and limits of the cgroups of pods, from the pods' requests and limits
// and from the configured reservations. Package podcgroups writes the result to the kernel. The numbers are the
// kubelet's (pkg/kubelet/cm/helpers_linux.go), and a module of podcgroups compares the two.
package resources

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"
)

// NoLimit removes a limit.
const NoLimit = -1

// ResourcePIDs is the name of the number of processes in lists of the machine's resources.
const ResourcePIDs v1.ResourceName = "pid"

// The conversions between Kubernetes' CPUs and the kernel's shares and quotas, with the kernel's bounds.
const (
	// MinShares is the lowest weight, that of best-effort pods.
	MinShares = 2

	maxShares        = 262144
	sharesPerCPU     = 1024
	milliPerCPU      = 1000
	minQuotaMicros   = 1000
	defaultCPUPeriod = 100 * time.Millisecond
)

// Resources holds the settings of a cgroup.
type Resources struct {
	// CPUShares is the weight among sibling cgroups, in the shares of cgroup v1, from 2 to 262144; 0 leaves it unchanged.
	CPUShares uint64
	// CPUQuota is the CPU time, in microseconds, within each CPUPeriod; NoLimit for no limit, and 0 leaves it unchanged.
	CPUQuota  int64
	CPUPeriod uint64
	// Memory is in bytes, and PIDs a number of processes and threads; NoLimit removes the limit, and 0 leaves it
	// unchanged.
	Memory, PIDs int64
	// HugePages maps page sizes to limits, both in bytes; other sizes may not be used. Nil leaves all unchanged.
	HugePages map[int64]int64
	// Unified maps files of cgroup v2, such as MemoryLow, to their values; other files stay unchanged. Cgroup v1 has none.
	Unified map[string]string
}

// Limits holds the configured limits of pods.
type Limits struct {
	// CPUQuota converts CPU limits to quotas within each CPUPeriod. A period of 0 is the kernel's 100 ms.
	CPUQuota  bool
	CPUPeriod time.Duration
	// PIDs is the maximum number of processes and threads of a pod; 0 and less for no limit.
	PIDs int64
	// MemoryQoS protects and throttles memory below the limits.
	MemoryQoS MemoryQoS
}

// ForPod returns the settings of a pod's cgroup: the weight of its requests, and, if every container has a limit, the
// sum of the limits. A container without a limit is not limited, and neither is its pod.
func ForPod(pod *v1.Pod, limits Limits) Resources {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	most := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	r := Resources{
		CPUShares: Shares(requests.Cpu().MilliValue()), CPUQuota: NoLimit, Memory: NoLimit, PIDs: max(limits.PIDs, 0),
		HugePages: hugePages(requests),
		Unified:   limits.MemoryQoS.ofPod(pod, requests.Memory().Value(), most.Memory().Value()),
	}
	if qos.GetPodQOS(pod) == v1.PodQOSBestEffort {
		r.CPUShares = MinShares
		return r
	}
	if limits.CPUQuota && limited(pod, v1.ResourceCPU) {
		period := limits.CPUPeriod
		if period <= 0 {
			period = defaultCPUPeriod
		}
		r.CPUPeriod = uint64(period.Microseconds()) //nolint:gosec // it is more than 0
		r.CPUQuota = max(most.Cpu().MilliValue()*period.Microseconds()/milliPerCPU, minQuotaMicros)
	}
	if limited(pod, v1.ResourceMemory) {
		r.Memory = most.Memory().Value()
	}
	return r
}

// limited reports whether a pod, or else every container of it, has a limit of a resource.
func limited(pod *v1.Pod, name v1.ResourceName) bool {
	has := func(limits v1.ResourceList) bool {
		quantity := limits[name]
		return !quantity.IsZero()
	}
	if pod.Spec.Resources != nil && has(pod.Spec.Resources.Limits) {
		return true
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if !has(list[i].Resources.Limits) {
				return false
			}
		}
	}
	return true
}

// BurstableShares returns the weight of all burstable pods together: of the requests of those that have not ended.
func BurstableShares(pods []*v1.Pod) uint64 {
	var milli int64
	for _, pod := range pods {
		if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed ||
			qos.GetPodQOS(pod) != v1.PodQOSBurstable {
			continue
		}
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
		milli += requests.Cpu().MilliValue()
	}
	return Shares(milli)
}

// ForAllPods returns the limits of all pods together: the capacity minus the reservations. Resources with an unknown
// capacity are omitted.
func ForAllPods(capacity v1.ResourceList, reserved ...v1.ResourceList) Resources {
	var r Resources
	left := func(name v1.ResourceName) (resource.Quantity, bool) {
		quantity, ok := capacity[name]
		quantity = quantity.DeepCopy()
		for _, part := range reserved {
			quantity.Sub(part[name])
		}
		return quantity, ok && quantity.Sign() > 0
	}
	if cpu, ok := left(v1.ResourceCPU); ok {
		r.CPUShares = Shares(cpu.MilliValue())
	}
	if memory, ok := left(v1.ResourceMemory); ok {
		r.Memory = memory.Value()
	}
	if pids, ok := left(ResourcePIDs); ok {
		r.PIDs = pids.Value()
	}
	if len(capacity) > 0 {
		r.HugePages = hugePages(capacity)
	}
	return r
}

// ForReservation returns the settings of a daemons' cgroup for their reservation; with compressible, only the weight.
// With MemoryQoS, the reserved memory is protected.
func ForReservation(reserved v1.ResourceList, compressible bool, protect MemoryQoS) Resources {
	var r Resources
	if cpu, ok := reserved[v1.ResourceCPU]; ok {
		r.CPUShares = Shares(cpu.MilliValue())
	}
	if compressible {
		return r
	}
	r.Memory, r.HugePages = reserved.Memory().Value(), hugePages(reserved)
	if pids, ok := reserved[ResourcePIDs]; ok {
		r.PIDs = pids.Value()
	}
	if memory, ok := reserved[v1.ResourceMemory]; ok && protect.Enabled {
		r.Unified = map[string]string{MemoryMin: bytes(memory.Value())}
	}
	return r
}

// MemoryLimits returns the memory limits of the QoS classes, which withhold the given percentage of the memory
// requested by better classes: from the allocatable memory, burstable pods may not use the requests of guaranteed pods,
// and best-effort pods may use those of neither.
func MemoryLimits(allocatable, percent int64, pods []*v1.Pod) (burstable, bestEffort int64) {
	requested := RequestedMemory(pods)
	burstable = allocatable - requested.Guaranteed*percent/100
	bestEffort = burstable - requested.Burstable*percent/100
	return max(burstable, 1), max(bestEffort, 1)
}

// Shares returns the weight of an amount of CPU, in thousandths.
func Shares(milli int64) uint64 {
	return uint64(min(max(milli*sharesPerCPU/milliPerCPU, MinShares), maxShares))
}

// Weight returns the weight of cgroup v2, from 1 to 10000, for shares: by the kubelet's formula, and not the runtimes',
// because pods compete only with pods.
func Weight(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	return 1 + (min(max(shares, MinShares), maxShares)-MinShares)*9999/(maxShares-MinShares)
}

// hugePages returns the amounts of huge pages in a list, by size.
func hugePages(list v1.ResourceList) map[int64]int64 {
	pages := map[int64]int64{}
	for name, quantity := range list {
		text, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		if size, err := resource.ParseQuantity(text); err == nil {
			pages[size.Value()] += quantity.Value()
		}
	}
	return pages
}
