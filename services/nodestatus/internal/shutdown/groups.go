package shutdown

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// systemCritical is the lowest priority of system pods: that of system-cluster-critical.
const systemCritical = 2_000_000_000

// Periods are the groups of a shutdown in the order of termination, each with its lowest priority and its time.
type Periods []kubeletconfigv1beta1.ShutdownGracePeriodByPodPriority

// PeriodsOf returns the groups of a validated configuration; none if it configures none. shutdownGracePeriod and
// shutdownGracePeriodCriticalPods become two groups: other pods, with the difference of the two times, and then
// critical pods.
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

// Total returns the total time of all groups, which is the delay that logind must grant: nodeconfig.ShutdownDelay, in
// whole seconds for each group.
func (p Periods) Total() time.Duration {
	var total time.Duration
	for i := range p {
		total += p.time(i)
	}
	return total
}

// time returns the time of a group.
func (p Periods) time(group int) time.Duration {
	return time.Duration(max(p[group].ShutdownGracePeriodSeconds, 0)) * time.Second
}

// Group returns the group of a priority: the last one that begins at or below it, and the first one for a lower
// priority. There must be a group.
func (p Periods) Group(priority int32) int {
	at, exact := slices.BinarySearchFunc(
		p,
		priority,
		func(period kubeletconfigv1beta1.ShutdownGracePeriodByPodPriority, priority int32) int {
			return cmp.Compare(period.Priority, priority)
		},
	)
	if exact {
		return at
	}
	return max(at-1, 0)
}

// End is a pod to terminate and its grace period in seconds.
type End struct {
	Pod          *v1.Pod
	GraceSeconds int64
}

// Due returns the remaining pods that are due in a group with the remaining time left: those of the group and of
// earlier groups. A pod's own grace period applies if it is shorter.
func (p Periods) Due(group int, left time.Duration, pods []*v1.Pod) []End {
	seconds := max(int64(left/time.Second), 1) // the runtime's minimum
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
