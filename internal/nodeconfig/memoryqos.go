package nodeconfig

import (
	"fmt"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

// earlierThrottling was the default of memoryThrottlingFactor. The kubelet accepts it in files that turn MemoryQoS off.
const earlierThrottling = 0.9

// ProtectsMemory reports whether the feature gate MemoryQoS is on, which has an effect with cgroup v2 only.
func ProtectsMemory(cfg *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return gateEnabled(cfg, gateMemoryQoS)
}

// validateMemoryQoS reports invalid settings, and settings that need the feature gate.
func validateMemoryQoS(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	const (
		none   = kubeletconfigv1beta1.NoneMemoryReservationPolicy
		tiered = kubeletconfigv1beta1.TieredReservationMemoryReservationPolicy
	)
	needs := fmt.Sprintf("needs the feature gate %s: leave it out, or remove the gate", gateMemoryQoS)
	switch factor := ptr.Deref(cfg.MemoryThrottlingFactor, earlierThrottling); {
	case !(factor > 0 && factor <= 1):
		errs.add("memoryThrottlingFactor", fmt.Sprintf("is %v, must be more than 0 and at most 1", factor))
	case factor != earlierThrottling && !ProtectsMemory(cfg):
		errs.add("memoryThrottlingFactor", needs)
	}
	switch policy := cfg.MemoryReservationPolicy; {
	case policy != none && policy != tiered:
		errs.add("memoryReservationPolicy", fmt.Sprintf("is %q, must be %s or %s", policy, none, tiered))
	case policy == tiered && !ProtectsMemory(cfg):
		errs.add("memoryReservationPolicy", needs)
	}
}
