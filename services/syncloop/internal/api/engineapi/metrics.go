package engineapi

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts evictions.
type Metrics struct {
	evictions prometheus.Counter
}

// NewMetrics registers the metrics of one Evictions; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	return &Metrics{evictions: promauto.With(registry).NewCounter(prometheus.CounterOpts{
		Name: "quartet_pod_evictions_total", Help: "Pods that were ended through EvictPod.",
	})}
}

// evicted notes that a pod is ended for good.
func (m *Metrics) evicted() { m.evictions.Inc() }
