package runtimeevents

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what comes of the runtime's event stream, with the kubelet's names and buckets where it has one.
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
		connected: counter("kubelet_evented_pleg_connection_success_count",
			"Streams of the runtime's events that could be relied on: an event has come, or the runtime has not refused for a second."),
		failed: counter("kubelet_evented_pleg_connection_error_count",
			"Streams of the runtime's events that ended, or never began, for another reason than the end of this process."),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_evented_pleg_connection_latency_seconds", Buckets: prometheus.DefBuckets,
			Help: "From the time that the runtime has put on an event to its arrival. A new stream begins with old events.",
		}),
		received: counter("quartet_pleg_runtime_events_total", "Events received from the runtime."),
	}
	registry.MustRegister(m.connected, m.failed, m.received, m.latency)
	return m
}

// event counts an event that the runtime says to be of a time; the zero time when it does not say.
func (m *Metrics) event(at, now time.Time) {
	m.received.Inc()
	if !at.IsZero() {
		m.latency.Observe(now.Sub(at).Seconds())
	}
}
