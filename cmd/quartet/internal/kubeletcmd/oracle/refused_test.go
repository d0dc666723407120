package oracle

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// questionable are fields that may be refused, alone in a file.
var questionable = []string{
	"maxPods: -1", "maxPods: 0", "podsPerCore: -1", "podPidsLimit: 0", "podPidsLimit: -2",
	"nodeLeaseDurationSeconds: -1", "nodeLeaseDurationSeconds: 0", "eventBurst: -1", "eventRecordQPS: -1",
	"healthzPort: -1", "healthzPort: 70000", "cpuCFSQuotaPeriod: 1us", "cpuCFSQuotaPeriod: 2s", "cpuCFSQuotaPeriod: 0s",
	"cpuCFSQuotaPeriod: 20ms", "imageGCHighThresholdPercent: 101", "imageGCLowThresholdPercent: -1",
	"imageGCLowThresholdPercent: 85", "imageMinimumGCAge: -1s", "imageMaximumGCAge: -1s", "imageMaximumGCAge: 2m",
	"imageMaximumGCAge: 3m", "defaultPodSysctls: {net.core.somaxconn: '1'}",
	"featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {net.core.somaxconn: '1'}",
	"featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {vm.swappiness: '1'}",
	"featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {'net/core/somaxconn': '1', net.core.somaxconn: '2'}",
	"featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {'kernel.shm_rmid_forced': '1', 'user.max_user_namespaces': '2'}",
	"featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {'net..core': '1'}", "kubeAPIBurst: -1",
	"kubeAPIQPS: -1", "nodeStatusMaxImages: -2", "nodeStatusMaxImages: -1", "maxOpenFiles: -1", "oomScoreAdj: -1001",
	"oomScoreAdj: 1000", "port: -1", "port: 65536", "readOnlyPort: -1", "registryBurst: -1", "registryPullQPS: -1",
	"maxParallelImagePulls: 0", "maxParallelImagePulls: 1", "serializeImagePulls: true\nmaxParallelImagePulls: 2",
	"serverTLSBootstrap: true", "serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}",
	"runOnce: true", "registerWithTaints: [{key: a, effect: No}]",
	"registerWithTaints: [{key: 'a b', effect: NoSchedule}]",
	"registerWithTaints: [{key: a, value: 'b c', effect: NoSchedule}]",
	"registerWithTaints: [{key: a, value: b, effect: NoSchedule, timeAdded: '2026-01-01T00:00:00Z'}]",
	"registerWithTaints: [{key: a}]", "registerWithTaints: [{value: a, effect: NoSchedule}]",
	"shutdownGracePeriod: 500ms", "shutdownGracePeriod: -1s", "shutdownGracePeriodCriticalPods: 5s",
	"shutdownGracePeriod: 30s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]",
	"shutdownGracePeriod: 30s\nfeatureGates: {GracefulNodeShutdown: false}",
	"shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]\nfeatureGates: {GracefulNodeShutdownBasedOnPodPriority: false}",
	"memorySwap: {swapBehavior: UnlimitedSwap}", "memorySwap: {swapBehavior: NoSwap}",
	"crashLoopBackOff: {maxContainerRestartPeriod: 500ms}", "crashLoopBackOff: {maxContainerRestartPeriod: 6m}",
	"crashLoopBackOff: {maxContainerRestartPeriod: 6s}\nfeatureGates: {KubeletCrashLoopBackOffMax: false}",
	"featureGates: {KubeletCrashLoopBackOffMax: false}", "enforceNodeAllocatable: [system-reserved]",
	"enforceNodeAllocatable: [kube-reserved-compressible]",
	"enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\nkubeReservedCgroup: /x",
	"enforceNodeAllocatable: [kube-reserved, pods]\nkubeReservedCgroup: /x", "enforceNodeAllocatable: [pods, pods]",
	"enforceNodeAllocatable: [none, pods]", "enforceNodeAllocatable: [x]",
	"enforceNodeAllocatable: [none]\ncgroupsPerQOS: false", "enforceNodeAllocatable: []\ncgroupsPerQOS: false",
	"imagePullCredentialsVerificationPolicy: Never", "preloadedImagesVerificationAllowlist: [a]",
	"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [a/b, 'c/*']",
	"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: ['a/b:1']",
	"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: ['*']",
	"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: ['a/*/b']",
	"imagePullCredentialsVerificationPolicy: AlwaysVerify\nfeatureGates: {KubeletEnsureSecretPulledImages: false}",
	"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: ['']",
	"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: ['a/b*']",
	"logging: {format: xml}", "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
	"logging: {vmodule: [{filePattern: '', verbosity: 1}]}", "logging: {vmodule: [{filePattern: 'a=b', verbosity: 1}]}",
	"logging: {flushFrequency: -1s}", "logging: {options: {text: {splitStream: true}}}",
	"logging: {options: {text: {splitStream: true}}}\nfeatureGates: {LoggingAlphaOptions: true}",
	"logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}",
	"logging: {options: {json: {infoBufferSize: 1Mi}}}\nfeatureGates: {LoggingAlphaOptions: true}",
	"logging: {verbosity: 3000000000}", "tracing: {endpoint: ''}", "tracing: {endpoint: 'http://localhost:4317'}",
	"tracing: {endpoint: 'localhost:4317'}", "tracing: {endpoint: 'unix:///run/x.sock'}",
	"tracing: {endpoint: 'dns:///x:1'}", "tracing: {endpoint: 'localhost'}", "tracing: {samplingRatePerMillion: -1}",
	"tracing: {samplingRatePerMillion: 1000001}", "tracing: {endpoint: 'ipv4:1.2.3.4:5'}",
	"tracing: {endpoint: '127.0.0.1:4317'}", "tracing: {endpoint: '[::1]:4317'}", "containerRuntimeEndpoint: ''",
	"enableSystemLogQuery: true", "enableSystemLogQuery: true\nenableSystemLogHandler: false",
	"containerLogMaxWorkers: 0", "containerLogMonitorInterval: 2s", "containerLogMaxFiles: 1", "containerLogMaxFiles: 2",
	"containerLogMaxSize: x", "containerLogMaxSize: '-1'", "podLogsDir: ''", "podLogsDir: relative",
	"podLogsDir: /a/../b", "podLogsDir: '/a b'", "podLogsDir: /", "userNamespaces: {idsPerPod: 1000}",
	"userNamespaces: {idsPerPod: 65536}", "userNamespaces: {idsPerPod: 65537}",
	"userNamespaces: {idsPerPod: 4294967296}", "userNamespaces: {idsPerPod: 4294901760}",
	"evictionHard: {memory.available: x}", "evictionHard: {memory.available: '-1'}",
	"evictionHard: {memory.available: 101%}", "evictionHard: {memory.available: 0%}",
	"evictionHard: {memory.available: 100%}", "evictionHard: {x: 1%}", "evictionHard: {memory.available: '0'}",
	"evictionHard: {allocatableMemory.available: 1Gi}", "evictionHard: {pid.available: 10%}",
	"evictionHard: {containerfs.available: 1%}", "evictionHard: {containerfs.inodesFree: 1%}",
	"evictionSoft: {memory.available: 1Gi}",
	"evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: x}",
	"evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: -1s}",
	"evictionSoftGracePeriod: {memory.available: 1m}", "evictionMinimumReclaim: {memory.available: x}",
	"evictionMinimumReclaim: {memory.available: 5%}", "evictionMinimumReclaim: {memory.available: '-1'}",
	"evictionMinimumReclaim: {x: '1'}", "evictionMaxPodGracePeriod: -1", "kubeReserved: {x: '1'}",
	"kubeReserved: {cpu: x}", "kubeReserved: {cpu: '-1'}", "systemReserved: {ephemeral-storage: 1Gi, pid: '10'}",
	"kubeReserved: {hugepages-2Mi: 4Mi}", "systemReserved: {storage: 1Gi}", "qosReserved: {cpu: 10%}",
	"qosReserved: {memory: '10'}", "qosReserved: {memory: 110%}", "qosReserved: {memory: 10%}",
	"qosReserved: {memory: 10%}\nfeatureGates: {QOSReserved: true}", "featureGates: {Nothing: true}",
	"featureGates: {NodeSwap: false}", "featureGates: {EnvFiles: true}", "featureGates: {MemoryQoS: false}",
	"cgroupDriver: x", "cgroupDriver: systemd\ncgroupRoot: /a.slice", "cgroupDriver: systemd\ncgroupRoot: /a",
	"systemCgroups: /a", "systemCgroups: /a\ncgroupRoot: /", "hairpinMode: x", "topologyManagerPolicy: x",
	"topologyManagerScope: x", "memoryManagerPolicy: x", "cpuManagerPolicy: x", "reservedSystemCPUs: x",
	"reservedSystemCPUs: '0'\nkubeReservedCgroup: /x", "memoryThrottlingFactor: 2", "memoryThrottlingFactor: 0.5",
	"memoryReservationPolicy: x", "memoryReservationPolicy: TieredReservation", "iptablesDropBit: 32",
	"reservedMemory: [{numaNode: 0, limits: {memory: 0}}]", "showHiddenMetricsForVersion: '1'", "contentType: x",
	"configMapAndSecretChangeDetectionStrategy: x", "authorization: {mode: x}",
	"authentication: {webhook: {cacheTTL: -1s}}", "tlsMinVersion: x", "tlsCipherSuites: [x]",
	"tlsMinVersion: VersionTLS13", "tlsCurvePreferences: [29]", "tlsCurvePreferences: [1]", "tlsCertFile: /a",
	"clusterDNS: [x]", "clusterDomain: '-'", "clusterDomain: 'a.b.'", "address: x", "address: ''",
	"healthzBindAddress: x", "staticPodURL: x", "allowedUnsafeSysctls: [x]", "allowedUnsafeSysctls: ['net.*']",
	"allowedUnsafeSysctls: ['net*']", "allowedUnsafeSysctls: ['kernel.msg*']", "allowedUnsafeSysctls: ['*']",
	"syncFrequency: -1s", "fileCheckFrequency: -1s", "httpCheckFrequency: -1s", "nodeStatusUpdateFrequency: -1s",
	"nodeStatusReportFrequency: -1s", "runtimeRequestTimeout: -1s", "streamingConnectionIdleTimeout: -1s",
	"evictionPressureTransitionPeriod: -1s", "volumeStatsAggPeriod: -1s", "podCIDR: x", "podCIDR: 10.0.0.0/24",
	"providerID: x", "singleProcessOOMKill: true", "readOnlyPort: 10250\nport: 10250", "kernelMemcgNotification: true",
	"volumePluginDir: x", "enableContentionProfiling: true", "nodeStatusUpdateFrequency: null", "maxPods: null",
	"maxPodz: 1",
}

// Why one of the two refuses a field and the other does not.
const (
	unused      = "Quartet names it in its warning of fields that are not acted on"
	gate        = "Quartet has the feature whatever the gate says, and names the gate in its warning"
	later       = "a kubelet ends later in its start, or never works with it"
	meaningless = "a kubelet runs with it, and what it does then is not what is written"
	typing      = "a kubelet warns of it"
)

// judgedOtherwise has the questionable fields that one refuses and the other does not, with the reason.
var judgedOtherwise = map[string]string{
	"address: x":               later,
	"authorization: {mode: x}": later,
	"cgroupDriver: systemd\ncgroupRoot: /a.slice": later,
	"cgroupDriver: x": later,
	"configMapAndSecretChangeDetectionStrategy: x":         later,
	"containerLogMaxSize: x":                               later,
	"contentType: x":                                       later,
	"kubeReserved: {cpu: '-1'}":                            later,
	"kubeReserved: {cpu: x}":                               later,
	"kubeReserved: {hugepages-2Mi: 4Mi}":                   later,
	"kubeReserved: {x: '1'}":                               later,
	"qosReserved: {cpu: 10%}":                              later,
	"qosReserved: {memory: '10'}":                          later,
	"qosReserved: {memory: 110%}":                          later,
	"readOnlyPort: 10250\nport: 10250":                     later,
	"registerWithTaints: [{key: a}]":                       later,
	"staticPodURL: x":                                      later,
	"systemReserved: {storage: 1Gi}":                       later,
	"tlsCertFile: /a":                                      later,
	"tlsCipherSuites: [x]":                                 later,
	"tlsCurvePreferences: [1]":                             later,
	"tlsMinVersion: x":                                     later,
	"systemCgroups: /a":                                    unused,
	"hairpinMode: x":                                       unused,
	"topologyManagerPolicy: x":                             unused,
	"topologyManagerScope: x":                              unused,
	"reservedSystemCPUs: x":                                unused,
	"reservedSystemCPUs: '0'\nkubeReservedCgroup: /x":      unused,
	"memoryThrottlingFactor: 2":                            unused,
	"memoryReservationPolicy: x":                           unused,
	"iptablesDropBit: 32":                                  unused,
	"reservedMemory: [{numaNode: 0, limits: {memory: 0}}]": unused,
	"showHiddenMetricsForVersion: '1'":                     unused,
	"serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}":                                                                 gate,
	"shutdownGracePeriod: 30s\nfeatureGates: {GracefulNodeShutdown: false}":                                                                           gate,
	"shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]\nfeatureGates: {GracefulNodeShutdownBasedOnPodPriority: false}": gate,
	"crashLoopBackOff: {maxContainerRestartPeriod: 6s}\nfeatureGates: {KubeletCrashLoopBackOffMax: false}":                                            gate,
	"logging: {options: {text: {splitStream: true}}}":                                                                                                 meaningless,
	"tracing: {endpoint: ''}":                    meaningless,
	"authentication: {webhook: {cacheTTL: -1s}}": meaningless,
	"clusterDNS: [x]":                            meaningless,
	"clusterDomain: '-'":                         meaningless,
	"syncFrequency: -1s":                         meaningless,
	"fileCheckFrequency: -1s":                    meaningless,
	"httpCheckFrequency: -1s":                    meaningless,
	"nodeStatusUpdateFrequency: -1s":             meaningless,
	"nodeStatusReportFrequency: -1s":             meaningless,
	"runtimeRequestTimeout: -1s":                 meaningless,
	"streamingConnectionIdleTimeout: -1s":        meaningless,
	"evictionPressureTransitionPeriod: -1s":      meaningless,
	"maxPodz: 1":                                 typing,
}

// TestWhatAKubeletRefusesIsRefused, and nothing else.
func TestWhatAKubeletRefusesIsRefused(t *testing.T) {
	dir := t.TempDir()
	for i, fields := range questionable {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(header+fields+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, theirErr := theirs(t.Context(), []string{"--config=" + path})
		_, ourErr := ours([]string{"--config=" + path})
		differ := (theirErr != nil) != (ourErr != nil)
		if _, meant := judgedOtherwise[fields]; differ != meant {
			t.Errorf("%s\n\tkubelet: %v\n\tQuartet: %v\n\tthe table has it: %t", fields, theirErr, ourErr, meant)
		}
	}
}
