package nodeconfig

import (
	"fmt"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// validateImageCollection reports invalid limits of image garbage collection, as the kubelet does.
func validateImageCollection(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	high, low := *cfg.ImageGCHighThresholdPercent, *cfg.ImageGCLowThresholdPercent
	inRange := true
	for field, percent := range map[string]int32{"imageGCHighThresholdPercent": high, "imageGCLowThresholdPercent": low} {
		if percent < 0 || percent > 100 {
			errs.add(field, fmt.Sprintf("is %d, must be from 0 to 100", percent))
			inRange = false
		}
	}
	if inRange && low >= high {
		errs.add(
			"imageGCLowThresholdPercent",
			fmt.Sprintf("is %d, must be less than imageGCHighThresholdPercent, which is %d", low, high),
		)
	}
	minAge, maxAge := cfg.ImageMinimumGCAge.Duration, cfg.ImageMaximumGCAge.Duration
	if minAge < 0 {
		errs.add("imageMinimumGCAge", fmt.Sprintf("is %s, must be 0 or more", minAge))
	}
	if maxAge < 0 {
		errs.add("imageMaximumGCAge", fmt.Sprintf("is %s, must be 0, for no limit, or more", maxAge))
	} else if maxAge > 0 && maxAge <= minAge {
		errs.add(
			"imageMaximumGCAge",
			fmt.Sprintf("is %s, must be more than imageMinimumGCAge, which is %s, or 0 for no limit", maxAge, minAge),
		)
	}
}
