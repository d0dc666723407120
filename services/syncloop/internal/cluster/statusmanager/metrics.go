package statusmanager

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// request names a request that is made of an API server for the status of a pod, as the metrics do.
type request string

// The requests.
const (
	requestPatch  request = "patch"
	requestDelete request = "delete"
)

// heldBuckets are the kubelet's, in seconds.
var heldBuckets = []float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60}

// Metrics counts and times what the API server is told of pods.
type Metrics struct {
	held     prometheus.Histogram
	requests *prometheus.CounterVec
	factory  promauto.Factory
}

// NewMetrics registers the metrics of one Manager; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	m := &Metrics{
		held: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_status_sync_duration_seconds", Buckets: heldBuckets,
			Help: "Time from the moment the status of a pod has changed until the API server has it, however often it has changed again meanwhile.",
		}),
		requests: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_pod_status_requests_total",
			Help: "Requests that were made of the API server for the status of pods, and for the deletion of those that have ended, by what came of them.",
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

// reached notes that the API server has the status of a pod, and how long that took since the status changed.
func (m *Metrics) reached(took time.Duration) { m.held.Observe(max(took, 0).Seconds()) }

// requested notes a request and its outcome, in a word.
func (m *Metrics) requested(r request, outcome string) {
	m.requests.WithLabelValues(string(r), outcome).Inc()
}
