package executor

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// containerType is the type of a container in the kubelet's labels. A sidecar is an init container.
type containerType string

// The types of containers.
const (
	typeContainer containerType = "container"
	typeInit      containerType = "init_container"
	typeEphemeral containerType = "ephemeral_container"
)

// resizeBuckets are the kubelet's buckets, in milliseconds.
var resizeBuckets = []float64{10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000}

// Metrics counts and times starts and resizes. Metrics that the kubelet has, too, have its names.
type Metrics struct {
	sandboxDuration                                       *prometheus.HistogramVec
	gateWait                                              prometheus.Histogram
	sandboxErrors, containers, containerErrors            *prometheus.CounterVec
	pods, podErrors, userPods, userPodErrors              prometheus.Counter
	imageVolumes, imageVolumesMounted, imageVolumesFailed prometheus.Counter
	resizes                                               *prometheus.HistogramVec
}

// NewMetrics registers the metrics of a Manager; a nil registry registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	counter := func(name, help string) prometheus.Counter {
		return factory.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		sandboxDuration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_run_podsandbox_duration_seconds", Buckets: prometheus.DefBuckets,
			Help: "Duration of RunPodSandbox calls, by runtime handler; the empty handler is the runtime's default.",
		}, []string{"runtime_handler"}),
		gateWait: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "quartet_start_gate_wait_duration_seconds", Buckets: phases.Buckets(),
			Help: "How long the creation of a sandbox waited at the start gate, which limits how many sandboxes are created at once.",
		}),
		sandboxErrors: counters("kubelet_run_podsandbox_errors_total", "RunPodSandbox calls that failed, by runtime handler.", "runtime_handler"),
		containers: counters("kubelet_started_containers_total",
			"Starts of containers, failed ones included, by type.", "container_type"),
		containerErrors: counters("kubelet_started_containers_errors_total",
			"Containers that did not start, by type and by the reason that the status shows.", "container_type", "code"),
		pods:      counter("kubelet_started_pods_total", "Creations of pods' sandboxes, failed ones included."),
		podErrors: counter("kubelet_started_pods_errors_total", "Sandboxes that could not be created."),
		userPods: counter("kubelet_started_user_namespaced_pods_total",
			"Starts of pods with their own user namespace, failed ones included."),
		userPodErrors:       counter("kubelet_started_user_namespaced_pods_errors_total", "Starts of pods with their own user namespace that failed."),
		imageVolumes:        counter("kubelet_image_volume_requested_total", "Image volumes of containers that were to be created."),
		imageVolumesMounted: counter("kubelet_image_volume_mounted_succeed_total", "Image volumes that the runtime did not fail to mount."),
		imageVolumesFailed:  counter("kubelet_image_volume_mounted_errors_total", "Image volumes that the runtime could not mount."),
		resizes: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_resize_duration_milliseconds", Buckets: resizeBuckets,
			Help: "How long the resize of a pod took, by success.",
		}, []string{"success"}),
	}
	for _, kind := range []containerType{typeContainer, typeInit, typeEphemeral} {
		m.containers.WithLabelValues(string(kind))
	}
	return m
}

// sandboxBegun counts a sandbox that is about to be created.
func (m *Metrics) sandboxBegun() { m.pods.Inc() }

// sandboxFailed counts a sandbox that could not be created.
func (m *Metrics) sandboxFailed() { m.podErrors.Inc() }

// gatePassed records how long a sandbox waited at the start gate.
func (m *Metrics) gatePassed(waited time.Duration) { m.gateWait.Observe(max(waited, 0).Seconds()) }

// sandboxCalled records a call of RunPodSandbox.
func (m *Metrics) sandboxCalled(handler string, took time.Duration, err error) {
	m.sandboxDuration.WithLabelValues(handler).Observe(max(took, 0).Seconds())
	if err != nil {
		m.sandboxErrors.WithLabelValues(handler).Inc()
	}
}

// userNamespacedPod counts the start of a pod with its own user namespace: its sandbox and its first containers. err is
// nil if the pod has started.
func (m *Metrics) userNamespacedPod(err error) {
	m.userPods.Inc()
	if err != nil {
		m.userPodErrors.Inc()
	}
}

// containerBegun counts a container that is about to be started.
func (m *Metrics) containerBegun(kind decide.Kind) {
	m.containers.WithLabelValues(string(typeOf(kind))).Inc()
}

// containerFailed counts a container that did not start, by the reason.
func (m *Metrics) containerFailed(kind decide.Kind, code string) {
	m.containerErrors.WithLabelValues(string(typeOf(kind)), code).Inc()
}

// imagesMounted counts the images that a container mounts as volumes, and whether the runtime mounted them.
func (m *Metrics) imagesMounted(count int, mounted bool) {
	m.imageVolumes.Add(float64(count))
	if mounted {
		m.imageVolumesMounted.Add(float64(count))
	} else {
		m.imageVolumesFailed.Add(float64(count))
	}
}

// podResized records a resize of a pod.
func (m *Metrics) podResized(took time.Duration, err error) {
	m.resizes.WithLabelValues(strconv.FormatBool(err == nil)).Observe(float64(took.Milliseconds()))
}

// typeOf returns the kubelet's type of a kind of container.
func typeOf(kind decide.Kind) containerType {
	switch kind {
	case decide.Init, decide.Sidecar:
		return typeInit
	case decide.Ephemeral:
		return typeEphemeral
	case decide.Ordinary:
	}
	return typeContainer
}
