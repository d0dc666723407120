package podstore

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// startBuckets are the kubelet's buckets, in seconds.
var startBuckets = []float64{
	0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
}

// Metrics measures the starts of pods and counts the ends of containers, as the statuses of the pods show them.
type Metrics struct {
	start, total, sli, ready prometheus.Histogram
	ends                     *prometheus.CounterVec
	registry                 prometheus.Registerer
}

// NewMetrics registers the metrics of one Store. With a nil registry they are not registered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return factory.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	return &Metrics{
		start: histogram("kubelet_pod_start_duration_seconds", "Time from the moment a pod is first seen until its phase is Running.", startBuckets),
		total: histogram("kubelet_pod_start_total_duration_seconds",
			"Time from the creation of a pod until its status shows that all its containers run, with pulls and init containers.", startBuckets),
		sli: histogram("kubelet_pod_start_sli_duration_seconds",
			"As kubelet_pod_start_total_duration_seconds, less the time of image pulls and init containers, of pods without persistent volumes.", startBuckets),
		ready: histogram("quartet_pod_start_duration_seconds",
			"Time from the moment configmux first saw a pod until its status says that it is ready.", phases.Buckets()),
		ends: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_terminated_containers_total",
			Help: "Containers that the status has shown to have ended, by type, exit code and the runtime's reason.",
		}, []string{"container_type", "exit_code", "reason"}),
		registry: registry,
	}
}

// running records that the phase of a new pod is Running for the first time. Here and below a negative time counts as
// zero; it occurs when the wall clock was set back.
func (m *Metrics) running(sinceSeen time.Duration) { m.start.Observe(max(sinceSeen, 0).Seconds()) }

// podReady records that a new pod is ready for the first time.
func (m *Metrics) podReady(sinceSeen time.Duration) { m.ready.Observe(max(sinceSeen, 0).Seconds()) }

// started records that all containers of a new pod run for the first time. Pod has its status, and pulls is the
// duration of its image pulls.
func (m *Metrics) started(pod *v1.Pod, pulls time.Duration, now time.Time) {
	created := pod.CreationTimestamp.Time
	if created.IsZero() {
		created = podset.Seen(pod)
	}
	if created.IsZero() {
		return
	}
	took := now.Sub(created)
	m.total.Observe(max(took, 0).Seconds())
	if !isStateful(pod) {
		m.sli.Observe(max(took-pulls-initRuntime(&pod.Status), 0).Seconds())
	}
}

// statusChanged counts the containers that have ended between two statuses of a pod. The types of containers are the
// kubelet's.
func (m *Metrics) statusChanged(before, after *v1.PodStatus) {
	m.ended("init_container", before.InitContainerStatuses, after.InitContainerStatuses)
	m.ended("container", before.ContainerStatuses, after.ContainerStatuses)
	m.ended("ephemeral_container", before.EphemeralContainerStatuses, after.EphemeralContainerStatuses)
}

func (m *Metrics) ended(containerType string, before, after []v1.ContainerStatus) {
	known := map[string]bool{}
	for _, c := range before {
		known[c.Name] = c.State.Terminated != nil
	}
	for _, c := range after {
		if end := c.State.Terminated; end != nil && !known[c.Name] {
			m.ends.WithLabelValues(containerType, strconv.Itoa(int(end.ExitCode)), end.Reason).Inc()
		}
	}
}

// isStateful reports whether a pod is excluded from the startup objective, because it mounts a volume that outlives it.
// The definition is that of Kubernetes' pod startup latency SLI.
func isStateful(pod *v1.Pod) bool {
	for _, v := range pod.Spec.Volumes {
		if v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil {
			return true
		}
	}
	return false
}

// initRuntime returns the total run time of the ended init containers.
func initRuntime(status *v1.PodStatus) time.Duration {
	var sum time.Duration
	for _, c := range status.InitContainerStatuses {
		if ended := c.State.Terminated; ended != nil {
			sum += ended.FinishedAt.Sub(ended.StartedAt.Time)
		}
	}
	return sum
}
