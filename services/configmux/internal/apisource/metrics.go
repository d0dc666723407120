package apisource

import (
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

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
			Name: "quartet_configmux_api_watching", Help: "Open watches of pods at the API server: 1 for a node.",
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

// Requested counts a request by its result.
func (m *Metrics) Requested(v reflector.Verb, err error) {
	outcome := outcomeOK
	switch {
	case err == nil:
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
		outcome = outcomeExpired
	default:
		outcome = outcomeFailed
	}
	m.requests.WithLabelValues(string(v), outcome).Inc()
}

// Watching counts a watch that begins, and with false one that ends.
func (m *Metrics) Watching(watching bool) {
	if watching {
		m.watching.Inc()
	} else {
		m.watching.Dec()
	}
}
