// Package resources computes what the cgroups of pods are given: weights, quotas and limits, from the pods' requests and limits
// and from what the configuration reserves. It only computes; package podcgroups writes the result to the kernel. The numbers
// are the kubelet's (pkg/kubelet/cm/helpers_linux.go), and a module of podcgroups compares the two.
package resources

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"
)

// NoLimit takes a limit away.
const NoLimit = -1

// ResourcePIDs is the name of the number of processes where resources of the machine are listed.
const ResourcePIDs v1.ResourceName = "pid"

// Numbers between Kubernetes' processors and the kernel's shares and quotas, with the kernel's limits of them.
const (
	// MinShares is the least weight, which best-effort pods have.
	MinShares = 2

	maxShares        = 262144
	sharesPerCPU     = 1024
	milliPerCPU      = 1000
	minQuotaMicros   = 1000
	defaultCPUPeriod = 100 * time.Millisecond
)

// Resources is what a cgroup is given.
type Resources struct {
	// CPUShares is the weight among the cgroups beside it when processors are short, in the shares of cgroup v1, from 2 to
	// 262144; 0 leaves it as it is.
	CPUShares uint64
	// CPUQuota is how many microseconds of processor time there are in each CPUPeriod microseconds; NoLimit for as many as
	// there are, 0 leaves it as it is.
	CPUQuota  int64
	CPUPeriod uint64
	// Memory is in bytes, PIDs a number of processes and threads; NoLimit takes the limit away, 0 leaves it as it is.
	Memory, PIDs int64
	// HugePages has the limits by the size of the page, both in bytes; a size that is not in it may not be used. Nil leaves
	// all as they are.
	HugePages map[int64]int64
}

// Limits is what the configuration says of the limits of pods.
type Limits struct {
	// CPUQuota makes quotas, in each CPUPeriod, of limits of cpu. A period of 0 is the kernel's 100 ms.
	CPUQuota  bool
	CPUPeriod time.Duration
	// PIDs is how many processes and threads a pod may have; 0 and less for any number.
	PIDs int64
}

// ForPod is what a pod's cgroup is given: the weight of what it asks for, and, when every container has a limit, what they
// may have together. A container without a limit may use all that there is, and so may its pod.
func ForPod(pod *v1.Pod, limits Limits) Resources {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	most := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	r := Resources{
		CPUShares: Shares(requests.Cpu().MilliValue()), CPUQuota: NoLimit, Memory: NoLimit, PIDs: max(limits.PIDs, 0), HugePages: hugePages(requests),
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

// limited tells whether a pod as a whole, or else every container of it, has a limit of a resource.
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

// BurstableShares is the weight of all burstable pods together: of what those that have not ended ask for.
func BurstableShares(pods []*v1.Pod) uint64 {
	var milli int64
	for _, pod := range pods {
		if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed || qos.GetPodQOS(pod) != v1.PodQOSBurstable {
			continue
		}
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
		milli += requests.Cpu().MilliValue()
	}
	return Shares(milli)
}

// ForAllPods is what all pods together may use: what the machine has less what is reserved. Nothing is said of a resource of
// which it is not known how much there is.
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

// ForReservation is what a cgroup of daemons is given of what is reserved for them; of compressible resources alone that is the weight.
func ForReservation(reserved v1.ResourceList, compressible bool) Resources {
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
	return r
}

// MemoryLimits are those of the classes of pods, which leave the given part, in percent, of the memory that pods of better classes
// request: of allocatable memory burstable pods may not use what guaranteed pods request, and pods of no request neither what burstable
// ones do.
func MemoryLimits(allocatable, percent int64, pods []*v1.Pod) (burstable, bestEffort int64) {
	requested := map[v1.PodQOSClass]int64{}
	for _, pod := range pods {
		if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			continue
		}
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
		requested[qos.GetPodQOS(pod)] += requests.Memory().Value()
	}
	burstable = allocatable - requested[v1.PodQOSGuaranteed]*percent/100
	bestEffort = burstable - requested[v1.PodQOSBurstable]*percent/100
	return max(burstable, 1), max(bestEffort, 1)
}

// Shares is the weight of an amount of processor time, in thousandths of a processor.
func Shares(milli int64) uint64 {
	return uint64(min(max(milli*sharesPerCPU/milliPerCPU, MinShares), maxShares))
}

// Weight is the weight of cgroup v2, from 1 to 10000, that stands in the same place in its range as shares do in theirs: the
// kubelet's formula, not the runtimes', and pods are weighed against pods only.
func Weight(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	return 1 + (min(max(shares, MinShares), maxShares)-MinShares)*9999/(maxShares-MinShares)
}

// hugePages are the amounts of huge pages in a list, by size.
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
