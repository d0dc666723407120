package nodeconfig

import (
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

const (
	// DefaultOOMScoreAdj is the default of oomScoreAdj, the OOM score of the four processes.
	DefaultOOMScoreAdj = -999
	// DefaultMaxOpenFiles is the default of maxOpenFiles, the limit of open files of syncloop.
	DefaultMaxOpenFiles = 1_000_000
	// DefaultAddressIP is the address of the HTTP servers if the file does not set address.
	DefaultAddressIP = "127.0.0.1"
)

// defaultEvictionHard holds the kubelet's thresholds on Linux.
var defaultEvictionHard = map[string]string{
	"memory.available":   "100Mi",
	"nodefs.available":   "10%",
	"nodefs.inodesFree":  "5%",
	"imagefs.available":  "15%",
	"imagefs.inodesFree": "5%",
}

// setDefaults sets the kubelet's default for each field that Quartet implements. As in the kubelet, a duration or
// number of 0 counts as not set.
func setDefaults(cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	// As in the kubelet, the interval of computing the status is the default for the interval of reporting it.
	setDefault(&cfg.NodeStatusReportFrequency, cfg.NodeStatusUpdateFrequency)
	for _, d := range []struct {
		field *metav1.Duration
		value time.Duration
	}{
		{&cfg.SyncFrequency, time.Minute},
		{&cfg.FileCheckFrequency, 20 * time.Second},
		{&cfg.HTTPCheckFrequency, 20 * time.Second},
		{&cfg.NodeStatusUpdateFrequency, 10 * time.Second},
		{&cfg.NodeStatusReportFrequency, 5 * time.Minute},
		{&cfg.RuntimeRequestTimeout, 2 * time.Minute},
		{&cfg.StreamingConnectionIdleTimeout, 4 * time.Hour},
		{&cfg.EvictionPressureTransitionPeriod, 5 * time.Minute},
		{&cfg.ImageMinimumGCAge, 2 * time.Minute},
		{&cfg.VolumeStatsAggPeriod, time.Minute},
		{&cfg.CPUManagerReconcilePeriod, 10 * time.Second},
	} {
		if d.field.Duration == 0 {
			d.field.Duration = d.value
		}
	}
	setDefault(&cfg.ConfigMapAndSecretChangeDetectionStrategy, kubeletconfigv1beta1.WatchChangeDetectionStrategy)
	setDefault(&cfg.Address, DefaultAddressIP)
	setDefault(&cfg.Port, 10250)
	setDefault(&cfg.HealthzBindAddress, "127.0.0.1")
	setDefault(&cfg.NodeLeaseDurationSeconds, 40)
	setDefault(&cfg.ContainerRuntimeEndpoint, "unix:///run/containerd/containerd.sock")
	cfg.ContainerRuntimeEndpoint = fullEndpoint(cfg.ContainerRuntimeEndpoint)
	setDefault(&cfg.ImageServiceEndpoint, cfg.ContainerRuntimeEndpoint)
	cfg.ImageServiceEndpoint = fullEndpoint(cfg.ImageServiceEndpoint)
	setDefault(&cfg.PodLogsDir, "/var/log/pods")
	setDefault(&cfg.MaxPods, 110)
	setDefault(&cfg.CgroupDriver, "cgroupfs")
	setDefault(&cfg.CPUManagerPolicy, "none")
	setDefault(&cfg.MemoryManagerPolicy, kubeletconfigv1beta1.NoneMemoryManagerPolicy)
	setDefault(&cfg.TopologyManagerPolicy, kubeletconfigv1beta1.NoneTopologyManagerPolicy)
	setDefault(&cfg.TopologyManagerScope, kubeletconfigv1beta1.ContainerTopologyManagerScope)
	setDefault(&cfg.RegistryBurst, 10)
	setDefault(&cfg.EventBurst, 100)
	setDefault(&cfg.MaxOpenFiles, DefaultMaxOpenFiles)
	setDefault(&cfg.KubeAPIBurst, 100)
	setDefault(&cfg.ContentType, runtime.ContentTypeProtobuf)
	setDefault(&cfg.ContainerLogMaxSize, "10Mi")

	setServerDefaults(cfg)
	setPointer(&cfg.MakeIPTablesUtilChains, true)
	setPointer(&cfg.EnableSystemLogQuery, false)
	setPointer(&cfg.OOMScoreAdj, DefaultOOMScoreAdj)
	setPointer(&cfg.FailSwapOn, true)
	// Unlike the kubelet's, the default is false: cgroup v1 is supported.
	setPointer(&cfg.FailCgroupV1, false)
	setLoggingDefaults(cfg)
	setVerificationDefaults(cfg)
	setPointer(&cfg.HealthzPort, 10248)
	setPointer(&cfg.ResolverConfig, "/etc/resolv.conf")
	setPointer(&cfg.SerializeImagePulls, ptr.Deref(cfg.MaxParallelImagePulls, 1) < 2)
	setPointer(&cfg.RegistryPullQPS, 5)
	setPointer(&cfg.EventRecordQPS, 50)
	setPointer(&cfg.KubeAPIQPS, 50)
	setPointer(&cfg.NodeStatusMaxImages, 50)
	setCgroupDefaults(cfg)
	setDefault(&cfg.MemoryReservationPolicy, kubeletconfigv1beta1.NoneMemoryReservationPolicy)
	setPointer(&cfg.CPUCFSQuota, true)
	setPointer(&cfg.CPUCFSQuotaPeriod, metav1.Duration{Duration: 100 * time.Millisecond})
	setPointer(&cfg.PodPidsLimit, -1)
	setPointer(&cfg.SeccompDefault, false)
	setPointer(&cfg.RegisterNode, true)
	setPointer(&cfg.LocalStorageCapacityIsolation, true)
	setPointer(&cfg.ImageGCHighThresholdPercent, 85)
	setPointer(&cfg.ImageGCLowThresholdPercent, 80)
	setPointer(&cfg.ContainerLogMaxFiles, 5)
	setPointer(&cfg.ContainerLogMaxWorkers, 1)
	setPointer(&cfg.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
	setPointer(&cfg.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 5 * time.Minute})
	setPointer(&cfg.MergeDefaultEvictionSettings, false)
	setEvictionDefaults(cfg)
}

// setEvictionDefaults sets hard thresholds: all if the file has none, and the missing ones if the file requests it.
func setEvictionDefaults(cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	if cfg.EvictionHard != nil && !*cfg.MergeDefaultEvictionSettings {
		return
	}
	merged := make(map[string]string, len(defaultEvictionHard))
	for signal, threshold := range defaultEvictionHard {
		merged[signal] = threshold
	}
	for signal, threshold := range cfg.EvictionHard {
		merged[signal] = threshold
	}
	cfg.EvictionHard = merged
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func setPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// resolvePaths makes relative paths in the file relative to the file, as the kubelet does.
func resolvePaths(file string, cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	for _, path := range []*string{
		&cfg.StaticPodPath, &cfg.PodLogsDir, cfg.ResolverConfig, &cfg.TLSCertFile, &cfg.TLSPrivateKeyFile,
		&cfg.Authentication.X509.ClientCAFile,
	} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(file), *path)
		}
	}
}
