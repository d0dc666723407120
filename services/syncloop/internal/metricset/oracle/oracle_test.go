// Package oracle compares the metrics that syncloop has under the kubelet's names with the kubelet's own. It is a
// module of its own, so that nothing of the kubelet's code is in the product's reach.
package oracle

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/kubernetes/pkg/credentialprovider/plugin"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	kubeletcertificate "k8s.io/kubernetes/pkg/kubelet/certificate"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	kubeletmetrics "k8s.io/kubernetes/pkg/kubelet/metrics"
	"k8s.io/kubernetes/pkg/kubelet/metrics/collectors"
	"k8s.io/kubernetes/pkg/kubelet/podcertificate"
	servermetrics "k8s.io/kubernetes/pkg/kubelet/server/metrics"
	serverstats "k8s.io/kubernetes/pkg/kubelet/server/stats"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager/cache"
	volumemetrics "k8s.io/kubernetes/pkg/kubelet/volumemanager/metrics"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/metricset"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
)

// shape is what a dashboard or an alert relies on of a metric.
type shape struct {
	Type    string
	Labels  []string
	Buckets []float64
}

func shapes(t *testing.T, g prometheus.Gatherer) map[string]shape {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]shape{}
	for _, f := range families {
		s := shape{Type: f.GetType().String()}
		metric := f.GetMetric()[0]
		for _, label := range metric.GetLabel() {
			s.Labels = append(s.Labels, label.GetName())
		}
		for _, bucket := range metric.GetHistogram().GetBucket() {
			s.Buckets = append(s.Buckets, bucket.GetUpperBound())
		}
		all[f.GetName()] = s
	}
	return all
}

// everything is a registry with a sample of every metric.
func everything() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	metricset.All(metricstest.Sampled(registry))
	return registry
}

// certificates is a manager of the certificates of pods that has one.
type certificates struct{ podcertificate.Manager }

func (certificates) MetricReport() *podcertificate.MetricReport {
	return &podcertificate.MetricReport{PodCertificateStates: map[podcertificate.SignerAndState]int{{}: 1}}
}

// logs are those of one container.
func logs(context.Context) ([]statsapi.PodStats, error) {
	used := uint64(1)
	return []statsapi.PodStats{{Containers: []statsapi.ContainerStats{{Logs: &statsapi.FsStats{UsedBytes: &used}}}}}, nil
}

// claims provides the statistics of a volume of a claim.
type claims struct{ serverstats.Provider }

func (claims) ListPodStats(context.Context) ([]statsapi.PodStats, error) {
	one := uint64(1)
	return []statsapi.PodStats{{VolumeStats: []statsapi.VolumeStats{{
		PVCRef: &statsapi.PVCReference{Namespace: "shop", Name: "data"},
		FsStats: statsapi.FsStats{
			CapacityBytes: &one, AvailableBytes: &one, UsedBytes: &one, Inodes: &one, InodesFree: &one, InodesUsed: &one,
		},
	}}}}, nil
}

// mountedVolumes and wantedVolumes have one volume.
type (
	mountedVolumes struct{ cache.ActualStateOfWorld }
	wantedVolumes  struct{ cache.DesiredStateOfWorld }
)

func (mountedVolumes) GetMountedVolumes() []cache.MountedVolume {
	one := cache.MountedVolume{}
	one.PluginName = "kubernetes.io/empty-dir"
	return []cache.MountedVolume{one}
}

func (wantedVolumes) GetVolumesToMount() []cache.VolumeToMount { return nil }

// kubelet is the kubelet's own registry with a sample of each metric that syncloop has too.
func kubelet(t *testing.T) prometheus.Gatherer {
	t.Helper()
	kubeletmetrics.Register()
	resourceClaims, err := dra.NewManager(klog.Background(), nil, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	legacyregistry.CustomMustRegister(resourceClaims.NewMetricsCollector(), collectors.NewLogMetricsCollector(logs),
		collectors.PodCertificateCollectorFor(certificates{}), collectors.NewVolumeStatsCollector(claims{}))
	if _, err := kubeletcertificate.NewKubeletServerCertificateManager(nil, &kubeletconfig.KubeletConfiguration{}, "node",
		nil, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	volumemetrics.Register(mountedVolumes{}, wantedVolumes{}, nil)
	legacyregistry.MustRegister(kubeletmetrics.CRILosingSupport)
	kubeletmetrics.CRILosingSupport.WithLabelValues("1.38.0").Inc()
	kubeletmetrics.Evictions.WithLabelValues("").Inc()
	kubeletmetrics.EvictionStatsAge.WithLabelValues("").Observe(1)
	kubeletmetrics.Preemptions.WithLabelValues("").Inc()
	servermetrics.Register()
	kubeletmetrics.PodWorkerDuration.WithLabelValues("create").Observe(1)
	kubeletmetrics.PodStartSLIDuration.WithLabelValues().Observe(1)
	kubeletmetrics.PodStartTotalDuration.WithLabelValues().Observe(1)
	kubeletmetrics.AdmissionRejectionsTotal.WithLabelValues("").Inc()
	kubeletmetrics.CgroupManagerDuration.WithLabelValues("create").Observe(1)
	kubeletmetrics.RunPodSandboxDuration.WithLabelValues("").Observe(1)
	kubeletmetrics.RunPodSandboxErrors.WithLabelValues("").Inc()
	kubeletmetrics.ImagePullDuration.WithLabelValues("").Observe(1)
	kubeletmetrics.ImageGarbageCollectedTotal.WithLabelValues("space").Inc()
	kubeletmetrics.RunningContainerCount.WithLabelValues("running").Inc()
	kubeletmetrics.DesiredPodCount.WithLabelValues("").Inc()
	kubeletmetrics.ActivePodCount.WithLabelValues("").Inc()
	kubeletmetrics.WorkingPodCount.WithLabelValues("", "", "").Inc()
	kubeletmetrics.RestartedPodTotal.WithLabelValues("").Inc()
	kubeletmetrics.StartedContainersTotal.WithLabelValues("").Inc()
	kubeletmetrics.StartedContainersErrorsTotal.WithLabelValues("", "").Inc()
	kubeletmetrics.TerminatedContainersTotal.WithLabelValues("", "", "").Inc()
	kubeletmetrics.CPUManagerAllocationPerNUMA.WithLabelValues("0").Inc()
	kubeletmetrics.ContainerAlignedComputeResources.WithLabelValues("", "").Inc()
	kubeletmetrics.ContainerAlignedComputeResourcesFailure.WithLabelValues("", "").Inc()
	kubeletmetrics.DevicePluginRegistrationCount.WithLabelValues("").Inc()
	kubeletmetrics.DevicePluginAllocationDuration.WithLabelValues("").Observe(1)
	kubeletmetrics.DRAOperationsDuration.WithLabelValues("", "").Observe(1)
	kubeletmetrics.DRAGRPCOperationsDuration.WithLabelValues("", "", "").Observe(1)
	kubeletmetrics.DRANodePrepareSkipsTotal.WithLabelValues("").Inc()
	kubeletmetrics.DRANodeUnprepareSkipsTotal.WithLabelValues("").Inc()
	kubeletmetrics.PodResourcesEndpointRequestsTotalCount.WithLabelValues("v1").Inc()
	kubeletmetrics.PodResourcesEndpointRequestsListCount.WithLabelValues("v1").Inc()
	kubeletmetrics.PodResourcesEndpointRequestsGetCount.WithLabelValues("v1").Inc()
	kubeletmetrics.PodResourcesEndpointRequestsGetAllocatableCount.WithLabelValues("v1").Inc()
	kubeletmetrics.PodResourcesEndpointErrorsListCount.WithLabelValues("v1").Inc()
	kubeletmetrics.PodResourcesEndpointErrorsGetCount.WithLabelValues("v1").Inc()
	kubeletmetrics.PodResourcesEndpointErrorsGetAllocatableCount.WithLabelValues("v1").Inc()
	kubeletmetrics.PodRequestsTotal.WithLabelValues("", "").Inc()
	kubeletmetrics.PodRequestsList.WithLabelValues("", "").Inc()
	kubeletmetrics.PodRequestsGet.WithLabelValues("", "").Inc()
	kubeletmetrics.PodRequestsWatch.WithLabelValues("", "").Inc()
	servermetrics.HTTPRequests.WithLabelValues("", "", "", "").Inc()
	servermetrics.HTTPRequestsDuration.WithLabelValues("", "", "", "").Observe(1)
	servermetrics.HTTPInflightRequests.WithLabelValues("", "", "", "").Inc()
	servermetrics.IncWebSocketStreamingRequest("exec")
	kubeletmetrics.ContainerRequestedResizes.WithLabelValues("", "", "").Inc()
	kubeletmetrics.PodResizeDurationMilliseconds.WithLabelValues("").Observe(1)
	kubeletmetrics.PodPendingResizes.WithLabelValues("", "").Inc()
	kubeletmetrics.PodInfeasibleResizes.WithLabelValues("").Inc()
	kubeletmetrics.PodInProgressResizes.Inc()
	kubeletmetrics.PodDeferredAcceptedResizes.WithLabelValues("").Inc()
	kubeletmetrics.PodDeferredResizeDurationSeconds.WithLabelValues("", "").Observe(1)
	for _, image := range []string{"b.test/web", "f.test/web"} { // one plugin that answers, and one that fails
		plugin.NewExternalCredentialProviderDockerKeyring("", "", "", "").Lookup(image)
	}
	var none error
	volumeutil.OperationCompleteHook("kubernetes.io/empty-dir", "volume_mount")(volumetypes.CompleteFuncParam{Err: &none})
	volumeutil.RecordOperationLatencyMetric("kubernetes.io/empty-dir", "overall_volume_mount", 1)
	volumeutil.RecordCSIOperationLatencyMetrics("disks.example.com", "/csi.v1.Node/NodeStageVolume", nil, time.Second, "false")
	return kubeletmetrics.GetGather()
}

func TestKubeletNamesHaveTheKubeletsTypesLabelsAndBuckets(t *testing.T) {
	theirs, checked := shapes(t, kubelet(t)), 0
	for name, ours := range shapes(t, everything()) {
		// The kubelet makes samples of these only beside a driver with an ill storage, and on a node with SELinux.
		if name == "csi_node_storage_health_status" || strings.HasPrefix(name, "volume_manager_selinux_") {
			continue
		}
		if !slices.ContainsFunc([]string{"kubelet_", "storage_", "volume_", "csi_", "dra_"}, func(prefix string) bool {
			return strings.HasPrefix(name, prefix)
		}) {
			continue
		}
		checked++
		their, ok := theirs[name]
		if !ok {
			t.Errorf("a kubelet has no %s", name)
			continue
		}
		if diff := cmp.Diff(their, ours); diff != "" {
			t.Errorf("%s differs from the kubelet's (-kubelet +ours):\n%s", name, diff)
		}
	}
	if checked < 50 {
		t.Errorf("only %d metrics were compared", checked)
	}
}

func TestImageSizesFallIntoTheKubeletsClasses(t *testing.T) {
	for _, size := range []uint64{
		0, 1, 10 << 20, 10<<20 + 1, 100 << 20, 100<<20 + 1, 600 << 20, 2 << 30, 9 << 30, 15 << 30, 25 << 30, 35 << 30,
		50 << 30, 70 << 30, 101 << 30,
	} {
		registry := prometheus.NewRegistry()
		images.NewMetrics(registry).Pulled(size, time.Second)
		if got, want := labelOf(t, registry, "kubelet_image_pull_duration_seconds"), kubeletmetrics.GetImageSizeBucket(size); got != want {
			t.Errorf("%d bytes: got %q, the kubelet says %q", size, got, want)
		}
	}
}

// labelOf returns the value of the only label of a metric.
func labelOf(t *testing.T, g prometheus.Gatherer, name string) string {
	t.Helper()
	return family(t, g, name).GetMetric()[0].GetLabel()[0].GetValue()
}

func family(t *testing.T, g prometheus.Gatherer, name string) *dto.MetricFamily {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}
