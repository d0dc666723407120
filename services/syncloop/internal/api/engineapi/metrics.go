package engineapi

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts evictions.
type Metrics struct {
	evictions prometheus.Counter
}

// NewMetrics registers the metrics of an Evictions; with a nil registry they are not registered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	return &Metrics{evictions: promauto.With(registry).NewCounter(prometheus.CounterOpts{
		Name: "quartet_pod_evictions_total", Help: "Pods that were evicted by EvictPod.",
	})}
}

// evicted counts an eviction.
func (m *Metrics) evicted() { m.evictions.Inc() }
