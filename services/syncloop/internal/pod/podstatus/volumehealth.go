package podstatus

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volumeHealth returns the health of the pod's volumes. As in the kubelet, an entry is made when a volume has its first
// condition, changes when the set of statuses and reasons of its conditions does, and stays when its volume recovers.
func (g *generation) volumeHealth() []v1.PodVolumeHealth {
	all := slices.Clone(g.in.Previous.VolumeHealth)
	for i := range g.pod.Spec.Volumes {
		name := g.pod.Spec.Volumes[i].Name
		conditions, known := g.in.VolumeHealth[name]
		if !known {
			continue
		}
		fresh := v1.PodVolumeHealth{
			Name: name, HealthConditions: conditions, LastTransitionTime: metav1.Time{Time: g.in.Now},
		}
		at := slices.IndexFunc(all, func(h v1.PodVolumeHealth) bool { return h.Name == name })
		switch {
		case at < 0 && len(conditions) > 0:
			all = append(all, fresh)
		case at >= 0 && !sameHealth(all[at].HealthConditions, conditions):
			all[at] = fresh
		}
	}
	return all
}

// sameHealth reports whether two lists have the same set of statuses and reasons.
func sameHealth(a, b []v1.VolumeHealthCondition) bool {
	contains := func(all []v1.VolumeHealthCondition, one v1.VolumeHealthCondition) bool {
		return slices.ContainsFunc(all, func(other v1.VolumeHealthCondition) bool {
			return one.Status == other.Status && one.Reason == other.Reason
		})
	}
	covers := func(all, some []v1.VolumeHealthCondition) bool {
		return !slices.ContainsFunc(some, func(one v1.VolumeHealthCondition) bool { return !contains(all, one) })
	}
	return covers(a, b) && covers(b, a)
}
