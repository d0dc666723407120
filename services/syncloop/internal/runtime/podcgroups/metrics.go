package podcgroups

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// operation is an operation on a cgroup, as in the kubelet's metrics.
type operation string

// Operations.
const (
	operationCreate  operation = "create"
	operationUpdate  operation = "update"
	operationDestroy operation = "destroy"
)

// Metrics times the operations on cgroups, and has the memory that is protected.
type Metrics struct {
	duration *prometheus.HistogramVec
	min, low prometheus.Gauge
}

// NewMetrics registers the metrics of a Tree; a nil registry registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{duration: promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubelet_cgroup_manager_duration_seconds", Buckets: prometheus.DefBuckets,
		Help: "Duration of operations on the cgroups of pods and their parents, by operation: create, update, destroy.",
	}, []string{"operation_type"})}
	gauge := func(name, help string) prometheus.Gauge {
		return promauto.With(registry).NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m.min = gauge("kubelet_memory_qos_node_memory_min_bytes",
		"Memory requested by guaranteed pods that the kernel never reclaims, in bytes.")
	m.low = gauge("kubelet_memory_qos_node_memory_low_bytes",
		"Memory requested by burstable pods that the kernel reclaims last, in bytes.")
	for _, op := range []operation{operationCreate, operationUpdate, operationDestroy} {
		m.duration.WithLabelValues(string(op))
	}
	return m
}

// done records the duration of an operation, successful or not.
func (m *Metrics) done(op operation, took time.Duration) {
	m.duration.WithLabelValues(string(op)).Observe(max(took, 0).Seconds())
}

// protected records the memory requests that are protected.
func (m *Metrics) protected(requested resources.Requested) {
	m.min.Set(float64(requested.Guaranteed))
	m.low.Set(float64(requested.Burstable))
}
