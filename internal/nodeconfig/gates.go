package nodeconfig

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// The feature gates that fields depend on.
const (
	gateCPUOptionsAlpha          = "CPUManagerPolicyAlphaOptions"
	gateCPUOptionsBeta           = "CPUManagerPolicyBetaOptions"
	gateVolumeHealth             = "CSIVolumeHealth"
	gateDefaultPodSysctls        = "DefaultPodSysctls"
	gateEnsureSecretPulledImages = "KubeletEnsureSecretPulledImages"
	gatePodLevelResize           = "InPlacePodLevelResourcesVerticalScaling"
	gateHugePageEviction         = "HugepageAwareEviction"
	gateMemoryQoS                = "MemoryQoS"
	gateLoggingAlpha             = "LoggingAlphaOptions"
	gateLoggingBeta              = "LoggingBetaOptions"
	gatePodsAPI                  = "PodsAPI"
	gateQOSReserved              = "QOSReserved"
	gateResourceHealth           = "ResourceHealthStatus"
	gateResourceHealthMessage    = "ResourceHealthStatusMessage"
	gateSELinuxMount             = "SELinuxMount"
)

// gatesText lists the feature gates of the kubelet of this version, one per line: its name, its default, and "locked"
// if it may not be changed. A test compares it with Kubernetes' own.
//
//go:embed gates.txt
var gatesText string

// gate is a feature gate of this version.
type gate struct{ value, locked bool }

var gates = parseGates(gatesText)

func parseGates(text string) map[string]gate {
	parsed := make(map[string]gate)
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		parsed[words[0]] = gate{value: words[1] == "true", locked: len(words) > 2} //nolint:mnd // the third word is "locked"
	}
	return parsed
}

// missingFeatures are on by default in the kubelet, and not implemented by Quartet.
var missingFeatures = []string{
	"SystemdWatchdog",
}

// switchableFeatures can be turned on and off in Quartet too: those that a field of the file depends on, the resizing
// of pod-level resources, the SELinux labels of volumes, the health of devices and volumes, and EventedPLEG, which
// Quartet does not depend on. The pods API can be turned off, too.
var switchableFeatures = []string{
	"EventedPLEG",
	gateCPUOptionsAlpha,
	gateCPUOptionsBeta,
	gateVolumeHealth,
	gateDefaultPodSysctls,
	gateEnsureSecretPulledImages,
	gateHugePageEviction,
	gateLoggingBeta,
	gateMemoryQoS,
	gatePodLevelResize,
	gatePodsAPI,
	gateQOSReserved,
	gateResourceHealth,
	gateResourceHealthMessage,
	gateSELinuxMount,
}

// ReportsDeviceHealth reports whether the status of a pod has its devices and their health.
func ReportsDeviceHealth(cfg *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return gateEnabled(cfg, gateResourceHealth)
}

// ReportsVolumeHealth reports whether CSI drivers are asked for the health of volumes.
func ReportsVolumeHealth(cfg *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return gateEnabled(cfg, gateVolumeHealth)
}

// ReportsHealthMessages reports whether the status of a pod has what drivers say about the health of devices.
func ReportsHealthMessages(cfg *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return gateEnabled(cfg, gateResourceHealthMessage)
}

// ResizesPodLevel reports whether the pod-level resources of a running pod can be changed.
func ResizesPodLevel(cfg *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return gateEnabled(cfg, gatePodLevelResize)
}

// SubtractsHugePages reports whether the available memory of the node has no huge pages.
func SubtractsHugePages(cfg *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return gateEnabled(cfg, gateHugePageEviction)
}

// MountsLabels reports whether volumes of every access mode are mounted with SELinux labels.
func MountsLabels(cfg *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return gateEnabled(cfg, gateSELinuxMount)
}

// ServesPodsAPI reports whether programs on the machine get the pods on the socket of the pods API.
func ServesPodsAPI(cfg *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return gateEnabled(cfg, gatePodsAPI)
}

// HasFeature reports whether the node has the feature of a gate: Quartet implements it, and the file does not turn it
// off.
func HasFeature(cfg *kubeletconfigv1beta1.KubeletConfiguration, gate string) bool {
	if slices.Contains(switchableFeatures, gate) {
		return gateEnabled(cfg, gate)
	}
	return implemented(gate)
}

// implemented reports whether Quartet implements the feature of a gate that cannot be switched.
func implemented(gate string) bool {
	return gates[gate].value && !slices.Contains(missingFeatures, gate)
}

// gateEnabled returns the value of a feature gate in the file, or else its default.
func gateEnabled(cfg *kubeletconfigv1beta1.KubeletConfiguration, name string) bool {
	if value, set := cfg.FeatureGates[name]; set {
		return value
	}
	return gates[name].value
}

// validateGates reports feature gates that the kubelet of this version does not accept.
func validateGates(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	for name, value := range cfg.FeatureGates {
		field := joinField("featureGates", name)
		known, found := gates[name]
		switch {
		case !found:
			errs.add(field, "there is no such feature gate in this version of Kubernetes: "+likelyGate(name))
		case known.locked && known.value != value:
			errs.add(field, fmt.Sprintf("cannot be %t, the feature is locked to %t: remove the gate", value, known.value))
		}
	}
}

func likelyGate(name string) string {
	best, distance := "", 3
	for _, known := range slices.Sorted(maps.Keys(gates)) {
		if d := editDistance(strings.ToLower(name), strings.ToLower(known)); d < distance {
			best, distance = known, d
		}
	}
	if best == "" {
		return "remove it"
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// ignoredGates returns the gates of a file whose value Quartet does not implement, in order.
func ignoredGates(cfg *kubeletconfigv1beta1.KubeletConfiguration) []string {
	var ignored []string
	for name, value := range cfg.FeatureGates {
		if value != implemented(name) && !slices.Contains(switchableFeatures, name) {
			ignored = append(ignored, name)
		}
	}
	slices.Sort(ignored)
	return ignored
}
