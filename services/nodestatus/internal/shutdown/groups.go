package shutdown

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// systemCritical is the priority from which on a pod belongs to the system: that of system-cluster-critical.
const systemCritical = 2_000_000_000

// Periods are the groups that pods end in, the first to go first, each with the least priority of its pods and its time.
type Periods []kubeletconfigv1beta1.ShutdownGracePeriodByPodPriority

// PeriodsOf takes the groups out of a configuration, which has been validated; none when it asks for none. shutdownGracePeriod and
// shutdownGracePeriodCriticalPods are two groups: all pods, in what the critical ones leave of it, then these.
func PeriodsOf(cfg *kubeletconfigv1beta1.KubeletConfiguration) Periods {
	if len(cfg.ShutdownGracePeriodByPodPriority) > 0 {
		periods := Periods(slices.Clone(cfg.ShutdownGracePeriodByPodPriority))
		slices.SortStableFunc(periods, func(a, b kubeletconfigv1beta1.ShutdownGracePeriodByPodPriority) int {
			return cmp.Compare(a.Priority, b.Priority)
		})
		return periods
	}
	whole, critical := cfg.ShutdownGracePeriod.Duration, cfg.ShutdownGracePeriodCriticalPods.Duration
	if whole <= 0 {
		return nil
	}
	return Periods{
		{Priority: 0, ShutdownGracePeriodSeconds: int64((whole - critical) / time.Second)},
		{Priority: systemCritical, ShutdownGracePeriodSeconds: int64(critical / time.Second)},
	}
}

// Total is how long all groups take at most: so long logind has to wait.
func (p Periods) Total() time.Duration {
	var total time.Duration
	for i := range p {
		total += p.time(i)
	}
	return total
}

// time is that of a group.
func (p Periods) time(group int) time.Duration {
	return time.Duration(max(p[group].ShutdownGracePeriodSeconds, 0)) * time.Second
}

// Group returns the group of a pod with a priority: the last one that begins at it or below it, and the first one for a pod
// below all. There must be a group.
func (p Periods) Group(priority int32) int {
	at, exact := slices.BinarySearchFunc(p, priority, func(period kubeletconfigv1beta1.ShutdownGracePeriodByPodPriority, priority int32) int {
		return cmp.Compare(period.Priority, priority)
	})
	if exact {
		return at
	}
	return max(at-1, 0)
}

// End is a pod that has to go, and how many seconds its containers have to stop.
type End struct {
	Pod          *v1.Pod
	GraceSeconds int64
}

// Due returns which of the pods that are left have to go now that it is the turn of a group with so much of its time left: its
// own, and what is left of the groups before it. A pod has what it asks for when that is less.
func (p Periods) Due(group int, left time.Duration, pods []*v1.Pod) []End {
	seconds := max(int64(left/time.Second), 1) // the runtime's shortest
	var due []End
	for _, pod := range pods {
		var priority int32
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		if p.Group(priority) > group {
			continue
		}
		grace := seconds
		if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
			grace = min(grace, *own)
		}
		due = append(due, End{Pod: pod, GraceSeconds: grace})
	}
	return due
}
