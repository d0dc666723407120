package resize

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"
)

// Waiting is a pod whose resize is pending.
type Waiting struct {
	// Wanted is the pod as its source names it, Allocated the pod with its allocated resources.
	Wanted, Allocated *v1.Pod
	// Since is the time at which the resize became pending; zero for a new one.
	Since time.Time
}

// Order sorts pods in the kubelet's order: those that do not request more, which should always fit; then by priority;
// then guaranteed pods before others; then by the time that they have waited, the longest first.
func Order(waiting []Waiting) {
	slices.SortStableFunc(waiting, func(a, b Waiting) int {
		return cmp.Or(
			compareBool(grows(a.Allocated, a.Wanted), grows(b.Allocated, b.Wanted)),
			cmp.Compare(priorityOf(b.Wanted), priorityOf(a.Wanted)),
			compareBool(!isGuaranteed(a.Wanted), !isGuaranteed(b.Wanted)),
			compareBool(a.Since.IsZero(), b.Since.IsZero()),
			a.Since.Compare(b.Since),
		)
	})
}

// compareBool sorts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func priorityOf(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

func isGuaranteed(pod *v1.Pod) bool { return qos.GetPodQOS(pod) == v1.PodQOSGuaranteed }

// PriorityUnknown is the priority class of a pod that is not known any more.
const PriorityUnknown = "unknown"

// The least priorities of some classes.
const (
	systemCritical = 2_000_000_000
	high           = 100_000
	low            = -1000
)

// PriorityClass returns the kubelet's name for a range of priorities; nil is a pod without a priority.
func PriorityClass(priority *int32) string {
	if priority == nil {
		return "normal"
	}
	switch p := *priority; {
	case p >= systemCritical:
		return "system-critical"
	case p >= high:
		return "high"
	case p > 0:
		return "medium"
	case p == 0:
		return "normal"
	case p > low:
		return "low"
	}
	return "very-low"
}
