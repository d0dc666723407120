package nodeconfig

import (
	"fmt"
	"time"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// validateShutdown reports invalid grace periods for a shutdown of the machine, as the kubelet does.
func validateShutdown(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	whole, critical := cfg.ShutdownGracePeriod.Duration, cfg.ShutdownGracePeriodCriticalPods.Duration
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"shutdownGracePeriod", whole}, {"shutdownGracePeriodCriticalPods", critical}} {
		if d.value != 0 && d.value < time.Second {
			errs.add(d.field, fmt.Sprintf("is %s, must be 0, for none, or 1s or more", d.value))
		}
	}
	if critical > whole {
		errs.add(
			"shutdownGracePeriodCriticalPods",
			fmt.Sprintf("is %s, must not be more than shutdownGracePeriod, which is %s: it is a part of that", critical, whole),
		)
	}
	if len(cfg.ShutdownGracePeriodByPodPriority) > 0 && (whole > 0 || critical > 0) {
		errs.add(
			"shutdownGracePeriodByPodPriority",
			"cannot be given together with shutdownGracePeriod or shutdownGracePeriodCriticalPods: leave out one or the other",
		)
	}
}

// ShutdownDelay returns the time for which a shutdown of the machine waits for the pods by a validated configuration:
// the total of shutdownGracePeriodByPodPriority, else shutdownGracePeriod; 0 if pods are not waited for.
func ShutdownDelay(cfg *kubeletconfigv1beta1.KubeletConfiguration) time.Duration {
	if len(cfg.ShutdownGracePeriodByPodPriority) == 0 {
		return max(cfg.ShutdownGracePeriod.Duration, 0)
	}
	var total time.Duration
	for _, group := range cfg.ShutdownGracePeriodByPodPriority {
		total += time.Duration(max(group.ShutdownGracePeriodSeconds, 0)) * time.Second
	}
	return total
}
