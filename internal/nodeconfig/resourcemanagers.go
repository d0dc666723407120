package nodeconfig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"
)

// CPUOptionGates returns the feature gates of the options of the CPU manager: CPUManagerPolicyAlphaOptions and
// CPUManagerPolicyBetaOptions.
func CPUOptionGates(cfg *kubeletconfigv1beta1.KubeletConfiguration) (alpha, beta bool) {
	return gateEnabled(cfg, gateCPUOptionsAlpha), gateEnabled(cfg, gateCPUOptionsBeta)
}

// validateCPUManager refuses what the kubelet refuses of the CPU manager before it looks at the machine.
func validateCPUManager(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	if policies := []string{"none", "static"}; !slices.Contains(policies, cfg.CPUManagerPolicy) {
		errs.add("cpuManagerPolicy", fmt.Sprintf("is %q, must be %s", cfg.CPUManagerPolicy, strings.Join(policies, " or ")))
	}
	if cfg.CPUManagerReconcilePeriod.Duration <= 0 {
		errs.add("cpuManagerReconcilePeriod", "must be longer than 0")
	}
	if cfg.ReservedSystemCPUs == "" {
		return
	}
	if cfg.SystemReservedCgroup != "" || cfg.KubeReservedCgroup != "" {
		errs.add("reservedSystemCPUs", "cannot be set with systemReservedCgroup or kubeReservedCgroup")
	}
	if _, err := cpuset.Parse(cfg.ReservedSystemCPUs); err != nil {
		errs.add("reservedSystemCPUs", fmt.Sprintf("is no list of CPUs, such as 0,2-3: %v", err))
	}
}

// validateMemoryManager refuses what the kubelet refuses of the memory manager before it looks at the machine.
func validateMemoryManager(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	policies := []string{kubeletconfigv1beta1.NoneMemoryManagerPolicy, "Static"}
	if p := cfg.MemoryManagerPolicy; !slices.Contains(policies, p) {
		errs.add("memoryManagerPolicy", fmt.Sprintf("is %q, must be %s", p, strings.Join(policies, " or ")))
	}
	validateReservedMemory(cfg, errs)
}

// validateTopologyManager refuses what the kubelet refuses of the topology manager before it looks at the machine.
func validateTopologyManager(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	policies := []string{
		kubeletconfigv1beta1.NoneTopologyManagerPolicy, kubeletconfigv1beta1.BestEffortTopologyManagerPolicy,
		kubeletconfigv1beta1.RestrictedTopologyManagerPolicy, kubeletconfigv1beta1.SingleNumaNodeTopologyManagerPolicy,
	}
	if p := cfg.TopologyManagerPolicy; !slices.Contains(policies, p) {
		errs.add("topologyManagerPolicy", fmt.Sprintf("is %q, must be one of %s", p, strings.Join(policies, ", ")))
	}
	scopes := []string{
		kubeletconfigv1beta1.ContainerTopologyManagerScope, kubeletconfigv1beta1.PodTopologyManagerScope,
	}
	if s := cfg.TopologyManagerScope; !slices.Contains(scopes, s) {
		errs.add("topologyManagerScope", fmt.Sprintf("is %q, must be %s", s, strings.Join(scopes, " or ")))
	}
}

// useReservedCPUs makes the CPUs of reservedSystemCPUs the reserved CPU time, as the kubelet does.
func useReservedCPUs(cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	set, err := cpuset.Parse(cfg.ReservedSystemCPUs)
	if err != nil || set.IsEmpty() {
		return
	}
	cfg.KubeReserved, cfg.SystemReserved = maps.Clone(cfg.KubeReserved), maps.Clone(cfg.SystemReserved)
	delete(cfg.KubeReserved, "cpu")
	if cfg.SystemReserved == nil {
		cfg.SystemReserved = map[string]string{}
	}
	cfg.SystemReserved["cpu"] = strconv.Itoa(set.Size())
}
