package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// apparmor refuses a pod with an AppArmor profile on a machine without AppArmor, and one whose local profile has no
// name.
func apparmor(r Request) *Refusal {
	if !namesProfile(r.Pod) {
		return nil
	}
	if !r.Machine.AppArmor {
		return &Refusal{Reason: ReasonAppArmor, Message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
	}
	for _, profile := range profiles(r.Pod) {
		if profile.Type == v1.AppArmorProfileTypeLocalhost &&
			(profile.LocalhostProfile == nil || strings.TrimSpace(*profile.LocalhostProfile) == "") {
			return &Refusal{Reason: ReasonAppArmor, Message: fmt.Sprintf("Cannot enforce AppArmor: invalid empty AppArmor profile name: %q", profile)}
		}
	}
	return nil
}

// namesProfile reports whether a pod requests a profile other than Unconfined, by a field or by the older annotation.
func namesProfile(pod *v1.Pod) bool {
	confines := func(p *v1.AppArmorProfile) bool { return p.Type != v1.AppArmorProfileTypeUnconfined }
	if slices.ContainsFunc(profiles(pod), confines) {
		return true
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		if strings.HasPrefix(key, v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) &&
			pod.Annotations[key] != v1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return true
		}
	}
	return false
}

// profiles returns the profiles in the fields of a pod and its containers.
func profiles(pod *v1.Pod) []*v1.AppArmorProfile {
	var all []*v1.AppArmorProfile
	if sc := pod.Spec.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
		all = append(all, sc.AppArmorProfile)
	}
	add := func(sc *v1.SecurityContext) {
		if sc != nil && sc.AppArmorProfile != nil {
			all = append(all, sc.AppArmorProfile)
		}
	}
	for i := range pod.Spec.InitContainers {
		add(pod.Spec.InitContainers[i].SecurityContext)
	}
	for i := range pod.Spec.Containers {
		add(pod.Spec.Containers[i].SecurityContext)
	}
	for i := range pod.Spec.EphemeralContainers {
		add(pod.Spec.EphemeralContainers[i].SecurityContext)
	}
	return all
}
