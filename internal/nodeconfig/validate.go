package nodeconfig

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/node/util/sysctl"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

// validate reports every invalid value. It runs after the defaults are set.
func validate(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	validateDurations(cfg, errs)
	validateNumbers(cfg, errs)
	validateAddresses(cfg, errs)
	validateStaticPodURL(cfg, errs)
	validateReservations(cfg, errs)
	validateEviction(cfg, errs)
	validateSysctls(cfg, errs)
	validateDefaultPodSysctls(cfg, errs)
	validateContainerLogs(cfg, errs)
	validateUserNamespaces(cfg, errs)
	validateImageCollection(cfg, errs)
	validateCgroups(cfg, errs)
	validateCPUManager(cfg, errs)
	validateMemoryManager(cfg, errs)
	validateTopologyManager(cfg, errs)
	validateQOSReserved(cfg, errs)
	validateServer(cfg, errs)
	validateShutdown(cfg, errs)
	if cfg.RunOnce {
		errs.add(
			"runOnce",
			"is refused, as by the kubelet: leave it out; 'quartet node --run-once' starts the desired pods and exits",
		)
	}
	validateTaints(cfg, errs)
	validateSwap(cfg, errs)
	validateMemoryQoS(cfg, errs)
	validateTracing(cfg, errs)
	validateGates(cfg, errs)
	validateLogging(cfg, errs)
	validateVerification(cfg, errs)
	if known := []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON}; !slices.Contains(known, cfg.ContentType) {
		errs.add("contentType", fmt.Sprintf("is %q, must be %s", cfg.ContentType, strings.Join(known, " or ")))
	}
	strategies := []kubeletconfigv1beta1.ResourceChangeDetectionStrategy{
		kubeletconfigv1beta1.WatchChangeDetectionStrategy,
		kubeletconfigv1beta1.TTLCacheChangeDetectionStrategy,
		kubeletconfigv1beta1.GetChangeDetectionStrategy,
	}
	if s := cfg.ConfigMapAndSecretChangeDetectionStrategy; !slices.Contains(strategies, s) {
		errs.add("configMapAndSecretChangeDetectionStrategy", fmt.Sprintf("is %q, must be Watch, Cache or Get", s))
	}
	if cfg.PodLogsDir != filepath.Clean(cfg.PodLogsDir) {
		errs.add(
			"podLogsDir",
			fmt.Sprintf("%q must be a clean path, for example %s", cfg.PodLogsDir, filepath.Clean(cfg.PodLogsDir)),
		)
	}
	if cfg.ClusterDomain != "" {
		for _, problem := range validation.IsDNS1123Subdomain(strings.TrimSuffix(cfg.ClusterDomain, ".")) {
			errs.add("clusterDomain", problem)
		}
	}
}

func validateDurations(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"syncFrequency", cfg.SyncFrequency.Duration},
		{"fileCheckFrequency", cfg.FileCheckFrequency.Duration},
		{"httpCheckFrequency", cfg.HTTPCheckFrequency.Duration},
		{"nodeStatusUpdateFrequency", cfg.NodeStatusUpdateFrequency.Duration},
		{"nodeStatusReportFrequency", cfg.NodeStatusReportFrequency.Duration},
		{"runtimeRequestTimeout", cfg.RuntimeRequestTimeout.Duration},
		{"streamingConnectionIdleTimeout", cfg.StreamingConnectionIdleTimeout.Duration},
		{"evictionPressureTransitionPeriod", cfg.EvictionPressureTransitionPeriod.Duration},
		{"cpuCFSQuotaPeriod", ptr.Deref(cfg.CPUCFSQuotaPeriod, metav1.Duration{}).Duration},
		{"crashLoopBackOff.maxContainerRestartPeriod", ptr.Deref(cfg.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{}).Duration},
	} {
		if d.value <= 0 {
			errs.add(d.field, fmt.Sprintf("is %s, must be more than 0", d.value))
		}
	}
	if period := cfg.CPUCFSQuotaPeriod.Duration; period > 0 && (period < time.Millisecond || period > time.Second) {
		errs.add("cpuCFSQuotaPeriod", fmt.Sprintf("is %s, must be from 1ms to 1s", period))
	}
	if limit := cfg.CrashLoopBackOff.MaxContainerRestartPeriod.Duration; limit > 0 &&
		(limit < time.Second || limit > 5*time.Minute) {
		errs.add("crashLoopBackOff.maxContainerRestartPeriod", fmt.Sprintf("is %s, must be from 1s to 5m", limit))
	}
}

func validateNumbers(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	ports := []struct {
		field   string
		value   int32
		minimum int32
	}{
		{"readOnlyPort", cfg.ReadOnlyPort, 0},
		{"port", cfg.Port, 1},
		{"healthzPort", ptr.Deref(cfg.HealthzPort, 0), 0},
	}
	for _, p := range ports {
		if p.value < p.minimum || p.value > 65535 {
			errs.add(p.field, fmt.Sprintf("is %d, must be from %d to 65535", p.value, p.minimum))
		}
	}
	if cfg.MaxPods < 0 {
		errs.add("maxPods", fmt.Sprintf("is %d, must be more than 0", cfg.MaxPods))
	}
	if cfg.PodsPerCore < 0 {
		errs.add("podsPerCore", fmt.Sprintf("is %d, must be 0 or more", cfg.PodsPerCore))
	}
	if n := *cfg.NodeStatusMaxImages; n < -1 {
		errs.add("nodeStatusMaxImages", fmt.Sprintf("is %d, must be -1 for all, or 0 or more", n))
	}
	if cfg.NodeLeaseDurationSeconds < 0 {
		errs.add("nodeLeaseDurationSeconds", fmt.Sprintf("is %d, must be more than 0", cfg.NodeLeaseDurationSeconds))
	}
	if qps := ptr.Deref(cfg.KubeAPIQPS, 0); qps < 0 {
		errs.add("kubeAPIQPS", fmt.Sprintf("is %d, must be 0 or more", qps))
	}
	if cfg.KubeAPIBurst < 0 {
		errs.add("kubeAPIBurst", fmt.Sprintf("is %d, must be more than 0", cfg.KubeAPIBurst))
	}
	if qps := ptr.Deref(cfg.EventRecordQPS, 0); qps < 0 {
		errs.add("eventRecordQPS", fmt.Sprintf("is %d, must be 0 or more", qps))
	}
	if cfg.EventBurst < 0 {
		errs.add("eventBurst", fmt.Sprintf("is %d, must be 0 or more", cfg.EventBurst))
	}
	if qps := ptr.Deref(cfg.RegistryPullQPS, 0); qps < 0 {
		errs.add("registryPullQPS", fmt.Sprintf("is %d, must be 0, for no limit, or more", qps))
	}
	if cfg.RegistryBurst < 0 {
		errs.add("registryBurst", fmt.Sprintf("is %d, must be more than 0", cfg.RegistryBurst))
	}
	if score := *cfg.OOMScoreAdj; score < -1000 || score > 1000 {
		errs.add("oomScoreAdj", fmt.Sprintf("is %d, must be from -1000 to 1000", score))
	}
	if cfg.MaxOpenFiles < 0 {
		errs.add("maxOpenFiles", fmt.Sprintf("is %d, must be more than 0", cfg.MaxOpenFiles))
	}
	if n := ptr.Deref(cfg.MaxParallelImagePulls, 1); n < 1 {
		errs.add("maxParallelImagePulls", fmt.Sprintf("is %d, must be 1 or more", n))
	} else if n > 1 && *cfg.SerializeImagePulls {
		errs.add(
			"maxParallelImagePulls",
			fmt.Sprintf("is %d while serializeImagePulls is true: set that to false, or leave this out", n),
		)
	}
}

func validateAddresses(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	if net.ParseIP(cfg.Address) == nil {
		errs.add("address", fmt.Sprintf("%q is not an IP address", cfg.Address))
	}
	// As for the kubelet, any address or host name is valid.
	if host := cfg.HealthzBindAddress; net.ParseIP(host) == nil &&
		len(validation.IsDNS1123Subdomain(strings.ToLower(host))) > 0 {
		errs.add("healthzBindAddress", fmt.Sprintf("%q is neither an IP address nor the name of a host", host))
	}
	for i, server := range cfg.ClusterDNS {
		if net.ParseIP(server) == nil {
			errs.add(fmt.Sprintf("clusterDNS[%d]", i), fmt.Sprintf("%q is not an IP address", server))
		}
	}
	endpoints := map[string]string{"containerRuntimeEndpoint": cfg.ContainerRuntimeEndpoint}
	if cfg.ImageServiceEndpoint != cfg.ContainerRuntimeEndpoint {
		endpoints["imageServiceEndpoint"] = cfg.ImageServiceEndpoint
	}
	for field, endpoint := range endpoints {
		if problem := checkEndpoint(endpoint); problem != "" {
			errs.add(field, problem)
		}
	}
}

// validateSysctls reports sysctls of the machine, because pods may only change namespaced ones.
func validateSysctls(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	for i, allowed := range cfg.AllowedUnsafeSysctls {
		name, isPrefix := strings.CutSuffix(sysctl.NormalizeName(allowed), "*")
		namespace, _, _ := sysctl.GetNamespace(allowed)
		field := fmt.Sprintf("allowedUnsafeSysctls[%d]", i)
		switch {
		case name == "" || strings.Contains(name, "*") || (isPrefix && !strings.HasSuffix(name, ".") && !strings.HasPrefix(name, "kernel.")):
			errs.add(
				field,
				fmt.Sprintf(
					"%q must be the name of a sysctl, or the beginning of some with a star, for example net.core.somaxconn or kernel.msg*",
					allowed,
				),
			)
		case namespace == sysctl.UnknownNamespace:
			errs.add(
				field,
				fmt.Sprintf(
					"%q is the machine's and not a pod's: must be one of net.*, kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.* or user.*",
					allowed,
				),
			)
		}
	}
}

// DefaultPodSysctls returns the sysctls of every pod: none without the feature gate.
func DefaultPodSysctls(cfg *kubeletconfigv1beta1.KubeletConfiguration) map[string]string {
	if !gateEnabled(cfg, gateDefaultPodSysctls) {
		return nil
	}
	return cfg.DefaultPodSysctls
}

// sysctlName matches the name of a sysctl, of at most maxSysctlName letters: segments separated by dots or slashes.
var sysctlName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*$`)
})

const maxSysctlName = 253

// validateDefaultPodSysctls reports sysctls that are not namespaced, and all of them without the feature gate.
func validateDefaultPodSysctls(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	if len(cfg.DefaultPodSysctls) > 0 && !gateEnabled(cfg, gateDefaultPodSysctls) {
		errs.add(
			"defaultPodSysctls",
			fmt.Sprintf("needs the feature gate %s: set featureGates: {%[1]s: true}", gateDefaultPodSysctls),
		)
		return
	}
	seen := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(cfg.DefaultPodSysctls)) {
		field, dotted := joinField("defaultPodSysctls", name), sysctl.NormalizeName(name)
		namespace, _, _ := sysctl.GetNamespace(name)
		other, twice := seen[dotted]
		seen[dotted] = name
		switch {
		case len(name) > maxSysctlName || !sysctlName().MatchString(name):
			errs.add(field, "is not the name of a sysctl, for example net.core.somaxconn")
		case namespace == sysctl.UnknownNamespace:
			errs.add(
				field,
				"is the machine's and not a pod's: must be one of net.*, kernel.shm*, kernel.msg*, kernel.sem or fs.mqueue.*",
			)
		case twice:
			errs.add(field, fmt.Sprintf("is the same as %s: remove one", other))
		}
	}
}

// reservable lists the resources that can be reserved.
var reservable = []string{"cpu", "memory", "ephemeral-storage", "pid"}

func validateReservations(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	for field, reserved := range map[string]map[string]string{"systemReserved": cfg.SystemReserved, "kubeReserved": cfg.KubeReserved} {
		for name, amount := range reserved {
			if !slices.Contains(reservable, name) {
				errs.add(joinField(field, name), "cannot be reserved: must be one of "+strings.Join(reservable, ", "))
				continue
			}
			if quantity, err := resource.ParseQuantity(amount); err != nil || quantity.Sign() < 0 {
				errs.add(
					joinField(field, name),
					fmt.Sprintf("%q is not an amount: must be 0 or more, for example 100m or 256Mi", amount),
				)
			}
		}
	}
}

// Threshold is the minimum amount of a resource that must be left.
type Threshold struct {
	// Quantity is an absolute amount; unset if Fraction is not 0.
	Quantity resource.Quantity
	// Fraction is a part of the capacity, from 0 to 1.
	Fraction float64
}

// Of returns the threshold for a resource with the given capacity.
func (t Threshold) Of(capacity int64) int64 {
	if t.Fraction > 0 {
		return int64(float64(capacity) * t.Fraction)
	}
	return t.Quantity.Value()
}

// ParseThreshold parses "100Mi" or "10%". As for the kubelet, 0% and 100% turn a threshold off, and so are 0.
func ParseThreshold(text string) (Threshold, error) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := strconv.ParseFloat(number, 64)
		if err != nil || !(percent >= 0 && percent <= 100) {
			return Threshold{}, fmt.Errorf("%q must be a percentage from 0%% to 100%%", text)
		}
		if percent == 100 {
			return Threshold{}, nil
		}
		return Threshold{Fraction: percent / 100}, nil
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Sign() < 0 {
		return Threshold{}, fmt.Errorf("%q is not an amount: must be 0 or more, for example 100Mi or 10%%", text)
	}
	return Threshold{Quantity: quantity}, nil
}
