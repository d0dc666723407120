package admission

import (
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"
)

// Shortage is the missing amount of a resource, in the units of Quantity.Value; CPU in thousandths.
type Shortage struct {
	Resource v1.ResourceName
	Amount   int64
}

// Victim is a pod that may be preempted for a critical one.
type Victim struct {
	Pod *v1.Pod
	// Critical is true for a critical pod.
	Critical bool
}

// Preempt selects the pods to preempt so that a critical pod can be admitted; ok is false if all of them together are
// not enough. As the kubelet, it selects as few as possible of those with the highest QoS class first, then of the
// lower ones; among equally suitable pods the smallest, and of equal ones the last. Only pods that are not critical, or
// have a lower priority, are selected.
func Preempt(pod *v1.Pod, short []Shortage, others []Victim) (victims []*v1.Pod, ok bool) {
	classes := map[v1.PodQOSClass][]*v1.Pod{}
	for _, other := range others {
		if preemptable(pod, other) {
			class := qos.GetPodQOS(other.Pod)
			classes[class] = append(classes[class], other.Pod)
		}
	}
	bestEffort, burstable := classes[v1.PodQOSBestEffort], classes[v1.PodQOSBurstable]
	guaranteed := classes[v1.PodQOSGuaranteed]
	if len(without(short, slices.Concat(bestEffort, burstable, guaranteed))) > 0 {
		return nil, false
	}
	// Resources that the lower classes cannot free must come from the guaranteed pods, and the remaining ones from the
	// burstable pods.
	fromGuaranteed := nearest(guaranteed, without(short, slices.Concat(bestEffort, burstable)))
	fromBurstable := nearest(burstable, without(short, slices.Concat(bestEffort, fromGuaranteed)))
	fromBestEffort := nearest(bestEffort, without(short, slices.Concat(fromBurstable, fromGuaranteed)))
	return slices.Concat(fromBestEffort, fromBurstable, fromGuaranteed), true
}

func preemptable(pod *v1.Pod, other Victim) bool {
	if !other.Critical {
		return true
	}
	return pod.Spec.Priority != nil && other.Pod.Spec.Priority != nil && *pod.Spec.Priority > *other.Pod.Spec.Priority
}

// nearest selects pods until nothing is missing, each time the one that leaves the least missing.
func nearest(pods []*v1.Pod, short []Shortage) []*v1.Pod {
	left := slices.Clone(pods)
	var taken []*v1.Pod
	for len(short) > 0 && len(left) > 0 {
		best := 0
		for i := range left {
			if d, shortest := distance(left[i], short), distance(left[best], short); d < shortest || d == shortest &&
				!isSmaller(left[best], left[i]) {
				best = i
			}
		}
		short = without(short, left[best:best+1])
		taken = append(taken, left[best])
		last := len(left) - 1
		left[best] = left[last]
		left = left[:last]
	}
	return taken
}

// without returns the shortages after pods have ended.
func without(short []Shortage, pods []*v1.Pod) []Shortage {
	var left []Shortage
	for _, s := range short {
		for _, pod := range pods {
			s.Amount -= frees(pod, s.Resource)
		}
		if s.Amount > 0 {
			left = append(left, s)
		}
	}
	return left
}

// distance returns how much is missing after the end of a pod: the sum of the squared missing fraction of each
// resource.
func distance(pod *v1.Pod, short []Shortage) float64 {
	var sum float64
	for _, s := range short {
		if missing := float64(s.Amount - frees(pod, s.Resource)); missing > 0 {
			sum += math.Pow(missing/float64(s.Amount), 2)
		}
	}
	return sum
}

// frees returns the amount of a resource that the end of a pod frees.
func frees(pod *v1.Pod, name v1.ResourceName) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	quantity := Counted(pod, name)
	if name == v1.ResourceCPU {
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// Counted returns the request of a pod for a resource as it counts for preemption and eviction. It is the kubelet's
// definition and differs from that for admission: pod-level requests replace those of containers, and the overhead
// counts if the pod requests any of the resource.
func Counted(pod *v1.Pod, name v1.ResourceName) resource.Quantity {
	quantity := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		SkipContainerLevelResources: resourcehelper.IsPodLevelResourcesSet(pod), ExcludeOverhead: true,
	})[name]
	if overhead, has := pod.Spec.Overhead[name]; has && !quantity.IsZero() {
		quantity.Add(overhead)
	}
	return quantity
}

func isSmaller(a, b *v1.Pod) bool {
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		if freedByA, freedByB := frees(a, name), frees(b, name); freedByA != freedByB {
			return freedByA < freedByB
		}
	}
	return false
}
