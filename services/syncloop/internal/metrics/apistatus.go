package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// StatusRequest names a request that is made of an API server for the status of a pod.
type StatusRequest string

// The requests.
const (
	StatusPatch  StatusRequest = "patch"
	StatusDelete StatusRequest = "delete"
)

// statusBuckets are the kubelet's, in seconds.
var statusBuckets = []float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60}

// statusMetrics are of what the API server is told of pods.
type statusMetrics struct {
	held     prometheus.Histogram
	requests *prometheus.CounterVec
	mirrors  *prometheus.CounterVec
}

func newStatusMetrics(f factory) statusMetrics {
	m := statusMetrics{
		held: f.histogram(kubelet, "pod_status_sync_duration_seconds",
			"Time from the moment the status of a pod has changed until the API server has it, however often it has changed again meanwhile.", statusBuckets),
		requests: f.counters(quartet, "pod_status_requests_total",
			"Requests that were made of the API server for the status of pods, and for the deletion of those that have ended, by what came of them.",
			"operation", "outcome"),
		mirrors: f.counters(quartet, "mirror_pod_requests_total",
			"Requests that were made of the API server to create and delete mirror pods, by what came of them.", "operation", "outcome"),
	}
	for _, op := range []string{"create", "delete"} {
		m.mirrors.WithLabelValues(op, "ok")
		m.mirrors.WithLabelValues(op, "failed")
	}
	for _, op := range []StatusRequest{StatusPatch, StatusDelete} {
		m.requests.WithLabelValues(string(op), "ok")
		m.requests.WithLabelValues(string(op), "failed")
	}
	return m
}

// StatusHeld notes that the API server has the status of a pod, and how long that took since it had changed.
func (m *Metrics) StatusHeld(took time.Duration) { m.status.held.Observe(seconds(took)) }

// StatusRequested notes a request and what came of it, in a word.
func (m *Metrics) StatusRequested(op StatusRequest, outcome string) {
	m.status.requests.WithLabelValues(string(op), outcome).Inc()
}

// MirrorRequested notes a request for a mirror pod, to "create" or to "delete" it, and what came of it.
func (m *Metrics) MirrorRequested(op string, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.status.mirrors.WithLabelValues(op, outcome).Inc()
}

// CollectStatuses adds how many pods have a status that the API server does not have, and how many static pods have, or are to have, a
// mirror pod there.
func CollectStatuses(registerer prometheus.Registerer, unsent, mirrors func() int) {
	gauge := func(prefix, name, help string, value func() int) {
		registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: prefix, Name: name, Help: help}, func() float64 { return float64(value()) }))
	}
	gauge(quartet, "pod_statuses_unsent", "Pods with a status that the API server does not have yet.", unsent)
	gauge(kubelet, "mirror_pods", "Static pods that have, or are to have, a mirror pod in the API server.", mirrors)
}
