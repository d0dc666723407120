package kubeletcmd

// fieldFlag is a flag of the kubelet that sets a field of the configuration file.
type fieldFlag struct {
	name, shorthand, field string
	value                  func() *fieldValue
	// usage is the help text beside the name of the field; it may be empty.
	usage string
	// adds is true for a mapping whose entries are merged with those of the file.
	adds bool
}

// fieldFlags returns all flags of the kubelet with a field of KubeletConfiguration.
func fieldFlags() []fieldFlag {
	return []fieldFlag{
		{name: "address", field: "address", value: address},
		{name: "allowed-unsafe-sysctls", field: "allowedUnsafeSysctls", value: list},
		{name: "anonymous-auth", field: "authentication.anonymous.enabled", value: boolean},
		{name: "authentication-token-webhook", field: "authentication.webhook.enabled", value: boolean},
		{name: "authentication-token-webhook-cache-ttl", field: "authentication.webhook.cacheTTL", value: duration},
		{name: "authorization-mode", field: "authorization.mode", value: word},
		{
			name:  "authorization-webhook-cache-authorized-ttl",
			field: "authorization.webhook.cacheAuthorizedTTL",
			value: duration,
		},
		{
			name:  "authorization-webhook-cache-unauthorized-ttl",
			field: "authorization.webhook.cacheUnauthorizedTTL",
			value: duration,
		},
		{name: "cgroup-driver", field: "cgroupDriver", value: word},
		{name: "cgroup-root", field: "cgroupRoot", value: word},
		{name: "cgroups-per-qos", field: "cgroupsPerQOS", value: boolean},
		{name: "client-ca-file", field: "authentication.x509.clientCAFile", value: word},
		{name: "cluster-dns", field: "clusterDNS", value: list},
		{name: "cluster-domain", field: "clusterDomain", value: word},
		{name: "container-log-max-files", field: "containerLogMaxFiles", value: int32Number},
		{name: "container-log-max-size", field: "containerLogMaxSize", value: word},
		{name: "contention-profiling", field: "enableContentionProfiling", value: boolean},
		{name: "cpu-cfs-quota", field: "cpuCFSQuota", value: boolean},
		{name: "cpu-cfs-quota-period", field: "cpuCFSQuotaPeriod", value: duration},
		{name: "cpu-manager-policy", field: "cpuManagerPolicy", value: word},
		{name: "cpu-manager-policy-options", field: "cpuManagerPolicyOptions", value: onePair},
		{name: "cpu-manager-reconcile-period", field: "cpuManagerReconcilePeriod", value: duration},
		{name: "enable-controller-attach-detach", field: "enableControllerAttachDetach", value: boolean},
		{name: "enable-debugging-handlers", field: "enableDebuggingHandlers", value: boolean},
		{name: "enable-server", field: "enableServer", value: boolean},
		{name: "enforce-node-allocatable", field: "enforceNodeAllocatable", value: list},
		{name: "event-burst", field: "eventBurst", value: int32Number},
		{name: "event-qps", field: "eventRecordQPS", value: int32Number},
		{name: "eviction-hard", field: "evictionHard", value: thresholds},
		{name: "eviction-max-pod-grace-period", field: "evictionMaxPodGracePeriod", value: int32Number},
		{name: "eviction-minimum-reclaim", field: "evictionMinimumReclaim", value: pairs},
		{name: "eviction-pressure-transition-period", field: "evictionPressureTransitionPeriod", value: duration},
		{name: "eviction-soft", field: "evictionSoft", value: thresholds},
		{name: "eviction-soft-grace-period", field: "evictionSoftGracePeriod", value: pairs},
		{name: "fail-cgroupv1", field: "failCgroupV1", value: boolean},
		{name: "fail-swap-on", field: "failSwapOn", value: boolean},
		{name: "feature-gates", field: "featureGates", value: gates, adds: true},
		{name: "file-check-frequency", field: "fileCheckFrequency", value: duration},
		{name: "hairpin-mode", field: "hairpinMode", value: word},
		{name: "healthz-bind-address", field: "healthzBindAddress", value: address},
		{name: "healthz-port", field: "healthzPort", value: int32Number},
		{name: "http-check-frequency", field: "httpCheckFrequency", value: duration},
		{name: "image-gc-high-threshold", field: "imageGCHighThresholdPercent", value: int32Number},
		{name: "image-gc-low-threshold", field: "imageGCLowThresholdPercent", value: int32Number},
		{name: "kernel-memcg-notification", field: "kernelMemcgNotification", value: boolean},
		{name: "kube-api-burst", field: "kubeAPIBurst", value: int32Number},
		{name: "kube-api-content-type", field: "contentType", value: word},
		{name: "kube-api-qps", field: "kubeAPIQPS", value: int32Number},
		{name: "kube-reserved", field: "kubeReserved", value: pairs},
		{name: "kube-reserved-cgroup", field: "kubeReservedCgroup", value: word},
		{name: "kubelet-cgroups", field: "kubeletCgroups", value: word},
		{name: "local-storage-capacity-isolation", field: "localStorageCapacityIsolation", value: boolean},
		{name: "log-flush-frequency", field: "logging.flushFrequency", value: duration},
		{name: "log-json-info-buffer-size", field: "logging.options.json.infoBufferSize", value: quantity},
		{name: "log-json-split-stream", field: "logging.options.json.splitStream", value: boolean},
		{name: "log-text-info-buffer-size", field: "logging.options.text.infoBufferSize", value: quantity},
		{name: "log-text-split-stream", field: "logging.options.text.splitStream", value: boolean},
		{name: "logging-format", field: "logging.format", value: word},
		{name: "make-iptables-util-chains", field: "makeIPTablesUtilChains", value: boolean},
		{name: "manifest-url", field: "staticPodURL", value: word},
		{name: "manifest-url-header", field: "staticPodURLHeader", value: headers},
		{name: "max-open-files", field: "maxOpenFiles", value: int64Number},
		{name: "max-pods", field: "maxPods", value: int32Number},
		{name: "memory-manager-policy", field: "memoryManagerPolicy", value: word},
		{name: "minimum-image-ttl-duration", field: "imageMinimumGCAge", value: duration},
		{name: "node-status-max-images", field: "nodeStatusMaxImages", value: int32Number},
		{name: "node-status-update-frequency", field: "nodeStatusUpdateFrequency", value: duration},
		{name: "oom-score-adj", field: "oomScoreAdj", value: int32Number},
		{name: "pod-cidr", field: "podCIDR", value: word},
		{name: "pod-manifest-path", field: "staticPodPath", value: word},
		{name: "pod-max-pids", field: "podPidsLimit", value: int64Number},
		{name: "pods-per-core", field: "podsPerCore", value: int32Number},
		{name: "port", field: "port", value: int32Number},
		{name: "protect-kernel-defaults", field: "protectKernelDefaults", value: boolean},
		{name: "qos-reserved", field: "qosReserved", value: pairs},
		{name: "read-only-port", field: "readOnlyPort", value: int32Number},
		{name: "registry-burst", field: "registryBurst", value: int32Number},
		{name: "registry-qps", field: "registryPullQPS", value: int32Number},
		{name: "reserved-cpus", field: "reservedSystemCPUs", value: word},
		{name: "reserved-memory", field: "reservedMemory", value: reservedMemory},
		{name: "resolv-conf", field: "resolvConf", value: word},
		{name: "rotate-certificates", field: "rotateCertificates", value: boolean},
		{name: "rotate-server-certificates", field: "serverTLSBootstrap", value: boolean},
		{name: "runonce", field: "runOnce", value: boolean},
		{name: "runtime-request-timeout", field: "runtimeRequestTimeout", value: duration},
		{name: "seccomp-default", field: "seccompDefault", value: boolean},
		{name: "serialize-image-pulls", field: "serializeImagePulls", value: boolean},
		{name: "streaming-connection-idle-timeout", field: "streamingConnectionIdleTimeout", value: duration},
		{name: "sync-frequency", field: "syncFrequency", value: duration},
		{name: "system-cgroups", field: "systemCgroups", value: word},
		{name: "system-reserved", field: "systemReserved", value: pairs},
		{name: "system-reserved-cgroup", field: "systemReservedCgroup", value: word},
		{name: "tls-cert-file", field: "tlsCertFile", value: word},
		{name: "tls-cipher-suites", field: "tlsCipherSuites", value: list},
		{name: "tls-min-version", field: "tlsMinVersion", value: word},
		{name: "tls-private-key-file", field: "tlsPrivateKeyFile", value: word},
		{name: "topology-manager-policy", field: "topologyManagerPolicy", value: word},
		{name: "topology-manager-policy-options", field: "topologyManagerPolicyOptions", value: pairs},
		{name: "topology-manager-scope", field: "topologyManagerScope", value: word},
		{name: "vmodule", field: "logging.vmodule", value: modules},
		{name: "volume-plugin-dir", field: "volumePluginDir", value: word},
		{name: "volume-stats-agg-period", field: "volumeStatsAggPeriod", value: duration},
	}
}

// nodeFields returns the field flags for the first groups of the help, because they are often used.
func nodeFields() []fieldFlag {
	return []fieldFlag{
		{
			name:  "register-node",
			field: "registerNode",
			value: boolean,
			usage: "register the Node with the API server; --register-node=false leaves that to somebody else",
		},
		{
			name:  "register-with-taints",
			field: "registerWithTaints",
			value: taints,
			usage: "`taints` to register the Node with, KEY=VALUE:EFFECT, separated by commas",
		},
		{name: "provider-id", field: "providerID", value: word, usage: "`id` of the machine at its provider"},
	}
}

// runtimeFields returns the field flags of the container runtime.
func runtimeFields() []fieldFlag {
	return []fieldFlag{
		{
			name:  "container-runtime-endpoint",
			field: "containerRuntimeEndpoint",
			value: word,
			usage: "`address` of the container runtime, unix:///PATH",
		},
		{
			name:  "image-service-endpoint",
			field: "imageServiceEndpoint",
			value: word,
			usage: "`address` that images are pulled at; that of the container runtime when empty",
		},
	}
}
