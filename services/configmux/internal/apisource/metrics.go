package apisource

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/reflector"
)

// Metrics counts what is asked of the API server, and what becomes of the checkpoint.
type Metrics struct {
	requests *prometheus.CounterVec
	watching prometheus.Gauge
	// written and unwritten are writes of the checkpoint.
	written, unwritten prometheus.Counter
}

// What comes of a request.
const (
	outcomeOK      = "ok"
	outcomeExpired = "expired"
	outcomeFailed  = "failed"
)

// NewMetrics registers the metrics of one API source. Each has its labels from the start, so that a rate has its 0.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_configmux_api_requests_total", Help: "Lists and watches of pods asked of the API server, by what came of them.",
		}, []string{"verb", "outcome"}),
		watching: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_configmux_api_watching", Help: "1 while the API server tells of changes of this node's pods.",
		}),
	}
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "quartet_configmux_api_checkpoint_writes_total", Help: "How often the pods of the API server were to be written to the disk, by what came of it.",
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
