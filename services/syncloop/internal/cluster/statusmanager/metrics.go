package statusmanager

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// request is the kind of a request to the API server, as in the metrics.
type request string

// The requests.
const (
	requestPatch  request = "patch"
	requestDelete request = "delete"
)

// heldBuckets are the kubelet's buckets, in seconds.
var heldBuckets = []float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60}

// Metrics counts and times the updates of pod statuses in the API server.
type Metrics struct {
	held     prometheus.Histogram
	requests *prometheus.CounterVec
	factory  promauto.Factory
}

// NewMetrics registers the metrics of one Manager. A nil registry is valid and registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	m := &Metrics{
		held: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_status_sync_duration_seconds", Buckets: heldBuckets,
			Help: "Time from the first unsent change of a pod's status until the API server has the newest one.",
		}),
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_pod_status_requests_total",
			Help: "Requests to the API server to patch the status of pods and to delete ended ones, by outcome.",
		}, []string{"operation", "outcome"}),
		factory: factory,
	}
	for _, r := range []request{requestPatch, requestDelete} {
		m.requests.WithLabelValues(string(r), string(taken))
		m.requests.WithLabelValues(string(r), string(failed))
	}
	return m
}

// Expose registers the number of pods with a status that the API server does not have. New calls it.
func (m *Metrics) Expose(unsent func() int) {
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quartet_pod_statuses_unsent", Help: "Pods with a status that the API server does not have yet.",
	}, func() float64 { return float64(unsent()) })
}

// reached records that the API server has the status of a pod, and the time since the status changed.
func (m *Metrics) reached(took time.Duration) { m.held.Observe(max(took, 0).Seconds()) }

// requested records a request and its outcome.
func (m *Metrics) requested(r request, outcome string) {
	m.requests.WithLabelValues(string(r), outcome).Inc()
}
