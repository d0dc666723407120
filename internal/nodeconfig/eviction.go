package nodeconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// EvictionSignals returns the signals that can have thresholds.
func EvictionSignals() []string {
	return []string{"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree",
		"containerfs.available", "containerfs.inodesFree", "allocatableMemory.available", "pid.available"}
}

// validateEviction reports invalid thresholds, and soft ones without a grace period.
func validateEviction(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	for field, texts := range map[string]map[string]string{
		"evictionHard": cfg.EvictionHard, "evictionSoft": cfg.EvictionSoft, "evictionMinimumReclaim": cfg.EvictionMinimumReclaim,
	} {
		for signal, text := range texts {
			if !isSignal(joinField(field, signal), signal, errs) {
				continue
			}
			threshold, err := ParseThreshold(text)
			if err == nil && field != "evictionMinimumReclaim" && threshold.Quantity.IsZero() && !strings.HasSuffix(text, "%") {
				err = fmt.Errorf("%q must be more than 0: 0%% turns a threshold off", text)
			}
			if err != nil {
				errs.add(joinField(field, signal), err.Error())
			}
		}
	}
	for signal, text := range cfg.EvictionSoftGracePeriod {
		field := joinField("evictionSoftGracePeriod", signal)
		if !isSignal(field, signal, errs) {
			continue
		}
		if grace, err := time.ParseDuration(text); err != nil || grace < 0 {
			errs.add(field, fmt.Sprintf("%q is not a time: must be 0 or more, for example 1m30s", text))
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(cfg.EvictionSoft)) {
		if _, set := cfg.EvictionSoftGracePeriod[signal]; !set {
			errs.add(
				joinField("evictionSoft", signal),
				"has no grace period: add evictionSoftGracePeriod."+signal+", for example 1m30s",
			)
		}
	}
}

func isSignal(field, signal string, errs *problems) bool {
	if slices.Contains(EvictionSignals(), signal) {
		return true
	}
	errs.add(field, "there is no such signal: must be one of "+strings.Join(EvictionSignals(), ", "))
	return false
}
