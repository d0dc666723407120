package resources

import (
	"os"
	"strconv"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"
)

// Files of cgroup v2 that protect and throttle memory.
const (
	// MemoryMin is memory that the kernel never reclaims, and MemoryLow memory that it reclaims last.
	MemoryMin = "memory.min"
	MemoryLow = "memory.low"
	// MemoryHigh is the usage from which on the kernel reclaims memory and throttles the processes.
	MemoryHigh = "memory.high"
)

// MemoryQoS decides how memory is protected and throttled below its limits. The zero value does neither.
type MemoryQoS struct {
	// Enabled is the feature gate MemoryQoS, on a machine with cgroup v2. The other fields need it.
	Enabled bool
	// Tiered protects the memory that pods request: of guaranteed pods with MemoryMin, of others with MemoryLow.
	Tiered bool
	// Throttling is the part of the memory between request and limit that a container may use before it is throttled,
	// from 0 to 1; 0 throttles none.
	Throttling float64
}

// Protection returns the setting that protects a request for memory of a pod; nil without a request, or if requests are
// not protected.
func (q MemoryQoS) Protection(pod *v1.Pod, request int64) map[string]string {
	switch {
	case !q.Tiered || request <= 0:
		return nil
	case qos.GetPodQOS(pod) == v1.PodQOSGuaranteed:
		return map[string]string{MemoryMin: bytes(request)}
	}
	return map[string]string{MemoryLow: bytes(request)}
}

// High returns MemoryHigh for a request and a limit for memory, in whole pages; empty if they leave nothing to
// throttle.
func (q MemoryQoS) High(request, limit int64) string {
	if q.Throttling <= 0 || limit <= 0 {
		return ""
	}
	page := int64(os.Getpagesize())
	high := int64(float64(request)+(float64(limit)-float64(request))*q.Throttling) / page * page
	if high <= request {
		return ""
	}
	return bytes(high)
}

// ofPod returns the settings of a pod's cgroup. Only a pod with resources of its own is throttled as a whole.
func (q MemoryQoS) ofPod(pod *v1.Pod, request, limit int64) map[string]string {
	settings := q.Protection(pod, request)
	if !resourcehelper.IsPodLevelResourcesSet(pod) || !limited(pod, v1.ResourceMemory) || request == limit {
		return settings
	}
	if high := q.High(request, limit); high != "" {
		if settings == nil {
			settings = map[string]string{}
		}
		settings[MemoryHigh] = high
	}
	return settings
}

// Requested is the memory that pods request, in bytes.
type Requested struct{ Guaranteed, Burstable int64 }

// RequestedMemory returns the memory that the pods that have not ended request.
func RequestedMemory(pods []*v1.Pod) Requested {
	var sum Requested
	for _, pod := range pods {
		if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			continue
		}
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
		switch memory := requests.Memory().Value(); qos.GetPodQOS(pod) {
		case v1.PodQOSGuaranteed:
			sum.Guaranteed += memory
		case v1.PodQOSBurstable:
			sum.Burstable += memory
		case v1.PodQOSBestEffort:
		}
	}
	return sum
}

// Above returns the settings of the cgroups above the pods': of all pods, and of burstable pods. A cgroup protects at
// most what those above it protect. Without protection, the settings take that of an earlier configuration back.
func (r Requested) Above() (all, burstable map[string]string) {
	burstable = map[string]string{MemoryLow: bytes(r.Burstable)}
	return map[string]string{MemoryMin: bytes(r.Guaranteed + r.Burstable), MemoryLow: burstable[MemoryLow]}, burstable
}

func bytes(n int64) string { return strconv.FormatInt(n, 10) }
