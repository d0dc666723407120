package nodeconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// What enforceNodeAllocatable may name: whose cgroup is limited.
const (
	// EnforcePods is for all pods together: to what the machine has less what is reserved.
	EnforcePods = "pods"
	enforceNone = "none"
	// reservedSuffix ends the two that are for the reservations, compressibleSuffix what limits those in processor time only.
	reservedSuffix     = "-reserved"
	compressibleSuffix = "-compressible"
)

// setCgroupDefaults limits all pods together where pods have cgroups, unless the file says what is to be limited. A file that
// turns off the cgroups and says nothing of the limit, which a kubelet refuses, has none.
func setCgroupDefaults(cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	setPointer(&cfg.CgroupsPerQOS, true)
	if cfg.EnforceNodeAllocatable == nil && *cfg.CgroupsPerQOS {
		cfg.EnforceNodeAllocatable = []string{EnforcePods}
	}
}

// enforcements are all that enforceNodeAllocatable may name.
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
		errs.add("cgroupRoot", fmt.Sprintf("%q: leave .slice out: /nodes/a is nodes.slice/nodes-a.slice of systemd", cfg.CgroupRoot))
	}
	all := cfg.EnforceNodeAllocatable
	for i, name := range all {
		field := fmt.Sprintf("enforceNodeAllocatable[%d]", i)
		who, reserved := strings.CutSuffix(strings.TrimSuffix(name, compressibleSuffix), reservedSuffix)
		cgroup := cfg.SystemReservedCgroup
		if who == "kube" {
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
			errs.add(field, fmt.Sprintf("%s needs the name of the cgroup: set %sReservedCgroup", name, who))
		case reserved && strings.HasSuffix(name, compressibleSuffix) && slices.Contains(all, strings.TrimSuffix(name, compressibleSuffix)):
			errs.add(field, fmt.Sprintf("%s and %s exclude each other", name, strings.TrimSuffix(name, compressibleSuffix)))
		case !*cfg.CgroupsPerQOS:
			errs.add(field, name+" needs cgroups of pods: set cgroupsPerQOS: true, or enforceNodeAllocatable: [none]")
		}
	}
}

// EnforcesReservation says whether the cgroup of daemons is limited to what is reserved for them, "system" or "kube", and whether that is in
// processor time only.
func EnforcesReservation(cfg *kubeletconfigv1beta1.KubeletConfiguration, purpose string) (whole, compressible bool) {
	return slices.Contains(cfg.EnforceNodeAllocatable, purpose+reservedSuffix), slices.Contains(cfg.EnforceNodeAllocatable, purpose+reservedSuffix+compressibleSuffix)
}

// ReservedMemoryPercent is how much of the memory that pods request qosReserved keeps from pods of lower classes, in percent. It is 0
// without the feature gate.
func ReservedMemoryPercent(cfg *kubeletconfigv1beta1.KubeletConfiguration) int64 {
	if !gateEnabled(cfg, gateQOSReserved) {
		return 0
	}
	percent, err := parsePercent(cfg.QOSReserved["memory"])
	if err != nil {
		return 0 // there is none: what there is has been validated
	}
	return percent
}

// validateQOSReserved reports reservations that a kubelet refuses: of other resources than memory, and others than percentages.
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
