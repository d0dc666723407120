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
	// Wanted is the pod as its source asks for it, Allocated with what it has.
	Wanted, Allocated *v1.Pod
	// Since is since when the resize is pending; zero for one that was not asked about yet.
	Since time.Time
}

// Order puts pods into the order in which the node is asked for them, which is the kubelet's: those that do not request more, which is
// expected to be possible; then by priority, then guaranteed pods before others, then those that have waited longest.
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

// compareBool puts false first.
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

// PriorityUnknown is the class of a pod that is not known any more.
const PriorityUnknown = "unknown"

// The least priorities of some classes.
const (
	systemCritical = 2_000_000_000
	high           = 100_000
	low            = -1000
)

// PriorityClass is the class of a pod's priority, in the kubelet's words; nil is a pod without one.
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
