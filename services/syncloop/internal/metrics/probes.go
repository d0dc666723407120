package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// prober begins the names of the kubelet's metrics of probes.
const prober = "prober"

// ProbeResult is what the answer to a probe counts as, in the kubelet's words.
type ProbeResult string

// The results; ProbeUnknown is of a call that could not be made, which the kubelet does not count.
const (
	ProbeSuccessful ProbeResult = "successful"
	ProbeFailed     ProbeResult = "failed"
	ProbeUnknown    ProbeResult = "unknown"
)

// Probe names a probe, in the labels of the metrics of probes.
type Probe struct {
	// Type is Liveness, Readiness or Startup.
	Type                      string
	Namespace, Pod, Container string
	UID                       types.UID
}

// probeMetrics count the calls of probes. They are in a registry of their own, since they name pods: who does not ask for them does
// not get them.
type probeMetrics struct {
	registry *prometheus.Registry
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newProbeMetrics() probeMetrics {
	registry := prometheus.NewRegistry()
	f := factory{registry}
	return probeMetrics{
		registry: registry,
		total: f.counters(prober, "probe_total", "Calls of probes of a container, by the kind of probe and by what the answer counts as: successful, failed, or unknown when the call could not be made.",
			"probe_type", "result", "container", "pod", "namespace", "pod_uid"),
		duration: f.histograms(prober, "probe_duration_seconds", "How long calls of probes took that were successful.", prometheus.DefBuckets,
			"probe_type", "container", "pod", "namespace"),
	}
}

// Probes has the metrics of probes, which name pods and are not among the others.
func (m *Metrics) Probes() prometheus.Gatherer { return m.probes.registry }

// Probed notes that a probe has got an answer.
func (m *Metrics) Probed(p Probe, result ProbeResult, took time.Duration) {
	m.probes.total.WithLabelValues(p.Type, string(result), p.Container, p.Pod, p.Namespace, string(p.UID)).Inc()
	if result == ProbeSuccessful {
		m.probes.duration.WithLabelValues(p.Type, p.Container, p.Pod, p.Namespace).Observe(seconds(took))
	}
}

// ProbeGone drops what was counted of a probe.
func (m *Metrics) ProbeGone(p Probe) {
	for _, result := range []ProbeResult{ProbeSuccessful, ProbeFailed, ProbeUnknown} {
		m.probes.total.DeleteLabelValues(p.Type, string(result), p.Container, p.Pod, p.Namespace, string(p.UID))
	}
	m.probes.duration.DeleteLabelValues(p.Type, p.Container, p.Pod, p.Namespace)
}
