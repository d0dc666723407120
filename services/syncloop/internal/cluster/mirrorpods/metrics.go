package mirrorpods

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The outcomes of a request.
const (
	outcomeOK     = "ok"
	outcomeFailed = "failed"
)

// Metrics counts the requests for mirror pods.
type Metrics struct {
	requests *prometheus.CounterVec
	factory  promauto.Factory
}

// NewMetrics registers the metrics of one Manager; with a nil registry they are not registered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	m := &Metrics{
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_mirror_pod_requests_total",
			Help: "Requests to the API server to create and delete mirror pods, by outcome.",
		}, []string{"operation", "outcome"}),
		factory: factory,
	}
	for _, op := range []action{create, remove} {
		m.requests.WithLabelValues(string(op), outcomeOK)
		m.requests.WithLabelValues(string(op), outcomeFailed)
	}
	return m
}

// Expose registers the number of static pods that have or get a mirror pod. New calls it.
func (m *Metrics) Expose(count func() int) {
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_mirror_pods", Help: "Static pods that have, or are to have, a mirror pod in the API server.",
	}, func() float64 { return float64(count()) })
}

// requested counts a request to create or to delete a mirror pod by its outcome.
func (m *Metrics) requested(op action, err error) {
	outcome := outcomeOK
	if err != nil {
		outcome = outcomeFailed
	}
	m.requests.WithLabelValues(string(op), outcome).Inc()
}
