package eviction

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts evictions because of pressure on the node or because of a pod's own limit.
type Metrics struct {
	evictions *prometheus.CounterVec
	age       *prometheus.HistogramVec
}

// NewMetrics registers the metrics of one Evictor. A nil registry is valid and registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	return &Metrics{
		evictions: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_evictions",
			Help: "Evicted pods by signal: the resource that the node was short of, or the disk limit that the pod exceeded.",
		}, []string{"eviction_signal"}),
		age: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_eviction_stats_age_seconds", Buckets: prometheus.DefBuckets,
			Help: "The age of the measurement that led to an eviction, by signal.",
		}, []string{"eviction_signal"}),
	}
}

// evicted counts an eviction.
func (m *Metrics) evicted(signal string) { m.evictions.WithLabelValues(signal).Inc() }

// read records the age of the measurement that led to an eviction.
func (m *Metrics) read(signal string, age time.Duration) {
	m.age.WithLabelValues(signal).Observe(max(age, 0).Seconds())
}
