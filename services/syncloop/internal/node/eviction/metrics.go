package eviction

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts the pods that are ended because the node runs short of something, or because of a limit of their own.
type Metrics struct {
	evictions *prometheus.CounterVec
	age       *prometheus.HistogramVec
}

// NewMetrics registers the metrics of one Evictor; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	return &Metrics{
		evictions: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_evictions",
			Help: "Pods ended by the node, by the signal: what it had run short of, or which limit of the disk a pod was above.",
		}, []string{"eviction_signal"}),
		age: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_eviction_stats_age_seconds", Buckets: prometheus.DefBuckets,
			Help: "How old the reading was that pods were ended for, by signal.",
		}, []string{"eviction_signal"}),
	}
}

// evicted notes that a pod is ended for a signal.
func (m *Metrics) evicted(signal string) { m.evictions.WithLabelValues(signal).Inc() }

// read notes the age of the reading that pods are ended for.
func (m *Metrics) read(signal string, age time.Duration) {
	m.age.WithLabelValues(signal).Observe(max(age, 0).Seconds())
}
