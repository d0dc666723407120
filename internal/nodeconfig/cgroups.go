package nodeconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// Values of enforceNodeAllocatable: the cgroups to limit.
const (
	// EnforcePods limits all pods together to the capacity of the machine minus the reservations.
	EnforcePods = "pods"
	enforceNone = "none"
	// reservedSuffix is the suffix of the values for the reservations; compressibleSuffix follows it to limit only their
	// processor time.
	reservedSuffix     = "-reserved"
	compressibleSuffix = "-compressible"
)

// setCgroupDefaults limits all pods together if pods have cgroups, unless the file sets enforceNodeAllocatable. A file
// that turns the cgroups off without setting it, which the kubelet refuses, has no limit.
func setCgroupDefaults(cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	setPointer(&cfg.CgroupsPerQOS, true)
	if cfg.EnforceNodeAllocatable == nil && *cfg.CgroupsPerQOS {
		cfg.EnforceNodeAllocatable = []string{EnforcePods}
	}
}

// enforcements returns all values of enforceNodeAllocatable.
func enforcements() []string {
	return []string{
		EnforcePods, "system" + reservedSuffix, "kube" + reservedSuffix, "system" + reservedSuffix + compressibleSuffix,
		"kube" + reservedSuffix + compressibleSuffix, enforceNone,
	}
}

func validateCgroups(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	if cfg.CgroupDriver != "cgroupfs" && cfg.CgroupDriver != "systemd" {
		errs.add("cgroupDriver", fmt.Sprintf("is %q, must be cgroupfs or systemd", cfg.CgroupDriver))
	}
	if cfg.CgroupDriver == "systemd" && strings.Contains(cfg.CgroupRoot, ".slice") {
		errs.add(
			"cgroupRoot",
			fmt.Sprintf("%q: leave .slice out: /nodes/a is nodes.slice/nodes-a.slice of systemd", cfg.CgroupRoot),
		)
	}
	all := cfg.EnforceNodeAllocatable
	for i, name := range all {
		field := fmt.Sprintf("enforceNodeAllocatable[%d]", i)
		reservedFor, reserved := strings.CutSuffix(strings.TrimSuffix(name, compressibleSuffix), reservedSuffix)
		cgroup := cfg.SystemReservedCgroup
		if reservedFor == "kube" {
			cgroup = cfg.KubeReservedCgroup
		}
		switch {
		case !slices.Contains(enforcements(), name):
			errs.add(field, fmt.Sprintf("%q must be one of %s", name, strings.Join(enforcements(), ", ")))
		case slices.Contains(all[:i], name):
			errs.add(field, name+" is there twice")
		case name == enforceNone && len(all) > 1:
			errs.add(field, "none cannot stand beside another")
		case name == enforceNone:
		case reserved && cgroup == "":
			errs.add(field, fmt.Sprintf("%s needs the name of the cgroup: set %sReservedCgroup", name, reservedFor))
		case reserved && strings.HasSuffix(name, compressibleSuffix) && slices.Contains(all,
			strings.TrimSuffix(name, compressibleSuffix)):
			errs.add(field, fmt.Sprintf("%s and %s exclude each other", name, strings.TrimSuffix(name, compressibleSuffix)))
		case !*cfg.CgroupsPerQOS:
			errs.add(field, name+" needs cgroups of pods: set cgroupsPerQOS: true, or enforceNodeAllocatable: [none]")
		}
	}
}

// EnforcesReservation reports whether the cgroup of daemons is limited to their reservation, "system" or "kube", and
// whether the limit is on processor time only.
func EnforcesReservation(cfg *kubeletconfigv1beta1.KubeletConfiguration, purpose string) (whole, compressible bool) {
	return slices.Contains(
			cfg.EnforceNodeAllocatable,
			purpose+reservedSuffix,
		), slices.Contains(
			cfg.EnforceNodeAllocatable,
			purpose+reservedSuffix+compressibleSuffix,
		)
}

// ReservedMemoryPercent returns the percentage of the memory requested by pods that qosReserved withholds from pods of
// lower classes. It is 0 without the feature gate.
func ReservedMemoryPercent(cfg *kubeletconfigv1beta1.KubeletConfiguration) int64 {
	if !gateEnabled(cfg, gateQOSReserved) {
		return 0
	}
	percent, err := parsePercent(cfg.QOSReserved["memory"])
	if err != nil {
		return 0 // not set: set values have been validated
	}
	return percent
}

// validateQOSReserved reports reservations that the kubelet refuses: of other resources than memory, or not in percent.
func validateQOSReserved(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	for name, text := range cfg.QOSReserved {
		field := joinField("qosReserved", name)
		if name != "memory" {
			errs.add(field, "cannot be reserved: must be memory")
		} else if _, err := parsePercent(text); err != nil {
			errs.add(field, err.Error())
		}
	}
}

func parsePercent(text string) (int64, error) {
	number, isPercentage := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseInt(number, 10, 64)
	if !isPercentage || err != nil || percent < 0 || percent > 100 {
		return 0, fmt.Errorf("%q must be a percentage from 0%% to 100%%", text)
	}
	return percent, nil
}
