package apisource

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/reflector"
)

// Metrics counts the requests to the API server and the writes of the checkpoint.
type Metrics struct {
	requests *prometheus.CounterVec
	watching prometheus.Gauge
	// written and unwritten count successful and failed writes of the checkpoint.
	written, unwritten prometheus.Counter
}

// The results of a request.
const (
	outcomeOK      = "ok"
	outcomeExpired = "expired"
	outcomeFailed  = "failed"
)

// NewMetrics registers the metrics of one API source. All label values exist from the start, so that a rate has its 0.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_configmux_api_requests_total",
			Help: "Lists and watches of pods requested from the API server, by result.",
		}, []string{"verb", "outcome"}),
		watching: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_configmux_api_watching", Help: "1 while a watch of this node's pods is open.",
		}),
	}
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "quartet_configmux_api_checkpoint_writes_total", Help: "Writes of the API server's pods to disk, by result.",
	}, []string{"outcome"})
	for _, v := range verbs {
		for _, outcome := range []string{outcomeOK, outcomeExpired, outcomeFailed} {
			m.requests.WithLabelValues(string(v), outcome)
		}
	}
	m.written, m.unwritten = writes.WithLabelValues(outcomeOK), writes.WithLabelValues(outcomeFailed)
	registry.MustRegister(m.requests, m.watching, writes)
	return m
}

func (m *Metrics) ok(v reflector.Verb) { m.requests.WithLabelValues(string(v), outcomeOK).Inc() }
func (m *Metrics) expired(v reflector.Verb) {
	m.requests.WithLabelValues(string(v), outcomeExpired).Inc()
}
func (m *Metrics) failed(v reflector.Verb) {
	m.requests.WithLabelValues(string(v), outcomeFailed).Inc()
}
