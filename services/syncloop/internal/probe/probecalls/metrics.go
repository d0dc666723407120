package probecalls

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// result is the result of a probe's call, in the kubelet's words.
type result string

// The results; resultUnknown is for a call that could not be made, which the kubelet does not count.
const (
	resultSuccessful result = "successful"
	resultFailed     result = "failed"
	resultUnknown    result = "unknown"
)

// result returns the metrics' word for an outcome.
func (o Outcome) result() result {
	switch o {
	case Success:
		return resultSuccessful
	case Failure:
		return resultFailed
	case Unknown:
	}
	return resultUnknown
}

// Metrics counts the calls of probes.
type Metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics creates the metrics of one Caller, and registers them unless the registry is nil. They name pods, so they
// belong in a separate registry for those scrapers that request them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	return &Metrics{
		total: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total",
			Help: "Calls of probes of a container, by kind of probe and result: successful, failed, or unknown if the call could not be made.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds", Help: "Duration of successful calls of probes.",
			Buckets: prometheus.DefBuckets,
		}, []string{"probe_type", "container", "pod", "namespace"}),
	}
}

// probed records the outcome of a call.
func (m *Metrics) probed(t Target, outcome Outcome, took time.Duration) {
	m.total.WithLabelValues(string(t.Kind), string(outcome.result()), t.Container.Name, t.Pod.Name, t.Pod.Namespace,
		string(t.Pod.UID)).Inc()
	if outcome == Success {
		m.duration.WithLabelValues(string(t.Kind), t.Container.Name, t.Pod.Name,
			t.Pod.Namespace).Observe(max(took, 0).Seconds())
	}
}

// forget drops the metrics of a probe.
func (m *Metrics) forget(t Target) {
	for _, outcome := range []result{resultSuccessful, resultFailed, resultUnknown} {
		m.total.DeleteLabelValues(string(t.Kind), string(outcome), t.Container.Name, t.Pod.Name, t.Pod.Namespace,
			string(t.Pod.UID))
	}
	m.duration.DeleteLabelValues(string(t.Kind), t.Container.Name, t.Pod.Name, t.Pod.Namespace)
}
