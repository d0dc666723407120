package nodeconfig

import (
	"fmt"
	"slices"
	"strings"
)

// supported lists the fields that some service implements.
var supported = []string{
	"apiVersion",
	"kind",
	// all four
	"tracing",
	// syncloop and nodestatus, of events
	"eventBurst",
	"eventRecordQPS",
	// configmux and nodestatus, of the API server
	"contentType",
	"kubeAPIBurst",
	"kubeAPIQPS",
	// configmux
	"staticPodPath",
	"fileCheckFrequency",
	"staticPodURL",
	"staticPodURLHeader",
	"httpCheckFrequency",
	// pleg
	"containerRuntimeEndpoint",
	"runtimeRequestTimeout",
	// syncloop
	"containerLogMaxFiles",
	"containerLogMaxSize",
	"containerLogMaxWorkers",
	"containerLogMonitorInterval",
	"address",
	"allowedUnsafeSysctls",
	"cgroupDriver",
	"cgroupRoot",
	"cgroupsPerQOS",
	"clusterDNS",
	"clusterDomain",
	"configMapAndSecretChangeDetectionStrategy",
	"cpuCFSQuota",
	"cpuCFSQuotaPeriod",
	"cpuManagerPolicy",
	"cpuManagerPolicyOptions",
	"cpuManagerReconcilePeriod",
	"crashLoopBackOff",
	"enforceNodeAllocatable",
	"imageGCHighThresholdPercent",
	"imageGCLowThresholdPercent",
	"imageMaximumGCAge",
	"imageMinimumGCAge",
	"imageServiceEndpoint",
	"maxParallelImagePulls",
	"podLogsDir",
	"podPidsLimit",
	"readOnlyPort",
	"resolvConf",
	"seccompDefault",
	"serializeImagePulls",
	"singleProcessOOMKill",
	"userNamespaces",
	"syncFrequency",
	"localStorageCapacityIsolation",
	"volumeStatsAggPeriod",
	"authentication",
	"authorization",
	"enableDebuggingHandlers",
	"enableProfilingHandler",
	"enableServer",
	"enableSystemLogHandler",
	"port",
	"serverTLSBootstrap",
	"streamingConnectionIdleTimeout",
	"tlsCertFile",
	"tlsCipherSuites",
	"tlsMinVersion",
	"tlsPrivateKeyFile",
	"evictionMaxPodGracePeriod",
	"defaultPodSysctls",
	"enableContentionProfiling",
	"enableSystemLogQuery",
	"failCgroupV1",
	"makeIPTablesUtilChains",
	"oomScoreAdj",
	"tlsCurvePreferences",
	"failSwapOn",
	"featureGates",
	"imagePullCredentialsVerificationPolicy",
	"kubeReservedCgroup",
	"logging",
	"maxOpenFiles",
	"memoryManagerPolicy",
	"memoryReservationPolicy",
	"memorySwap",
	"memoryThrottlingFactor",
	"preloadedImagesVerificationAllowlist",
	"protectKernelDefaults",
	"qosReserved",
	"registryBurst",
	"registryPullQPS",
	"systemReservedCgroup",
	"reservedMemory",
	"reservedSystemCPUs",
	"topologyManagerPolicy",
	"topologyManagerPolicyOptions",
	"topologyManagerScope",
	// nodestatus
	"enableControllerAttachDetach",
	"healthzBindAddress",
	"healthzPort",
	"evictionHard",
	"evictionMinimumReclaim",
	"evictionPressureTransitionPeriod",
	"evictionSoft",
	"evictionSoftGracePeriod",
	"kubeReserved",
	"maxPods",
	"mergeDefaultEvictionSettings",
	"nodeLeaseDurationSeconds",
	"nodeStatusMaxImages",
	"nodeStatusReportFrequency",
	"nodeStatusUpdateFrequency",
	"podCIDR",
	"podsPerCore",
	"providerID",
	"registerNode",
	"registerWithTaints",
	"rotateCertificates",
	"shutdownGracePeriod",
	"shutdownGracePeriodByPodPriority",
	"shutdownGracePeriodCriticalPods",
	"systemReserved",
}

// unsupported lists the fields that the file sets and no service implements. syncloop reports them.
func (d Decoded) unsupported(service Service) []string {
	if service != SyncLoop {
		return nil
	}
	var names []string
	for field := range d.index {
		if strings.ContainsAny(field, ".[") || slices.Contains(supported, field) || d.empty[field] {
			continue
		}
		names = append(names, field)
	}
	slices.SortFunc(names, func(a, b string) int { return d.index[a] - d.index[b] })
	for i, name := range names {
		names[i] = fmt.Sprintf("%s:%d: %s", d.file, d.index[name], name)
	}
	if field := "qosReserved"; len(d.Kubelet.QOSReserved) > 0 && !gateEnabled(&d.Kubelet, gateQOSReserved) {
		names = append(
			names,
			fmt.Sprintf("%s:%d: %s: needs the feature gate %s", d.file, d.index[field], field, gateQOSReserved),
		)
	}
	for _, name := range ignoredGates(&d.Kubelet) {
		field := joinField("featureGates", name)
		names = append(names, fmt.Sprintf("%s:%d: %s: %t", d.file, d.index[field], field, d.Kubelet.FeatureGates[name]))
	}
	return names
}
