package admission

import (
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"
)

// Shortage is how much of a resource is missing for a pod, in the units of Quantity.Value, of processors in thousandths.
type Shortage struct {
	Resource v1.ResourceName
	Amount   int64
}

// Victim is a pod that may be ended for a critical one, as far as that goes.
type Victim struct {
	Pod *v1.Pod
	// Critical is true for one that the node cannot do without.
	Critical bool
}

// Preempt chooses the pods that are to be ended so that a critical pod can be let in; not ok when all of them together are not enough.
// As the kubelet does, it takes as few as it can of those that asked for most, then of those that asked for less, and then of those that
// asked for nothing; among several that would do as well the smallest, of equal ones the last. Only those are taken that are not critical, or of less priority.
func Preempt(pod *v1.Pod, short []Shortage, others []Victim) (victims []*v1.Pod, ok bool) {
	classes := map[v1.PodQOSClass][]*v1.Pod{}
	for _, other := range others {
		if preemptable(pod, other) {
			class := qos.GetPodQOS(other.Pod)
			classes[class] = append(classes[class], other.Pod)
		}
	}
	bestEffort, burstable, guaranteed := classes[v1.PodQOSBestEffort], classes[v1.PodQOSBurstable], classes[v1.PodQOSGuaranteed]
	if len(without(short, slices.Concat(bestEffort, burstable, guaranteed))) > 0 {
		return nil, false
	}
	// What cannot be had from the lower classes has to come from the guaranteed pods, what is left then from the burstable ones.
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

// nearest takes pods until nothing is missing, each time the one after which least is.
func nearest(pods []*v1.Pod, short []Shortage) []*v1.Pod {
	left := slices.Clone(pods)
	var taken []*v1.Pod
	for len(short) > 0 && len(left) > 0 {
		best := 0
		for i := range left {
			if d, least := distance(left[i], short), distance(left[best], short); d < least || d == least && !isSmaller(left[best], left[i]) {
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

// without is what is missing when pods are gone.
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

// distance is how far from enough the end of a pod would be: for each resource the part that would still be missing, squared.
func distance(pod *v1.Pod, short []Shortage) float64 {
	var sum float64
	for _, s := range short {
		if missing := float64(s.Amount - frees(pod, s.Resource)); missing > 0 {
			sum += math.Pow(missing/float64(s.Amount), 2)
		}
	}
	return sum
}

// frees is how much of a resource the end of a pod gives back.
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

// Counted is how much of a resource a pod asks for, as that counts for who is ended to make room. It is the kubelet's count, and other than
// that by which pods are let in: a pod that asks for something as a whole asks for nothing by its containers, and what its sandbox takes
// counts when it asks for any of it.
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
		if of, than := frees(a, name), frees(b, name); of != than {
			return of < than
		}
	}
	return false
}
