package runtimeevents

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts the streams and events of the runtime, with the kubelet's names and buckets where it has them.
type Metrics struct {
	connected, failed, received prometheus.Counter
	latency                     prometheus.Histogram
}

// NewMetrics registers the metrics of one listener.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		connected: counter(
			"kubelet_evented_pleg_connection_success_count",
			"Established streams of the runtime's events: an event has arrived, or the runtime has not refused the stream for a second.",
		),
		failed: counter("kubelet_evented_pleg_connection_error_count",
			"Streams of the runtime's events that ended or failed for a reason other than the end of this process."),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_evented_pleg_connection_latency_seconds", Buckets: prometheus.DefBuckets,
			Help: "Time from the runtime's timestamp of an event to its arrival. A new stream begins with old events.",
		}),
		received: counter("quartet_pleg_runtime_events_total", "Events received from the runtime."),
	}
	registry.MustRegister(m.connected, m.failed, m.received, m.latency)
	return m
}

// event counts an event that the runtime created at a time; zero if unknown.
func (m *Metrics) event(at, now time.Time) {
	m.received.Inc()
	if !at.IsZero() {
		m.latency.Observe(now.Sub(at).Seconds())
	}
}
