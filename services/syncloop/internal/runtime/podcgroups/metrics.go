package podcgroups

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// operation is an operation on a cgroup, as in the kubelet's metrics.
type operation string

// Operations.
const (
	operationCreate  operation = "create"
	operationUpdate  operation = "update"
	operationDestroy operation = "destroy"
)

// Metrics times the operations on cgroups.
type Metrics struct {
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics of a Tree; a nil registry registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{duration: promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubelet_cgroup_manager_duration_seconds", Buckets: prometheus.DefBuckets,
		Help: "Duration of operations on the cgroups of pods and their parents, by operation: create, update, destroy.",
	}, []string{"operation_type"})}
	for _, op := range []operation{operationCreate, operationUpdate, operationDestroy} {
		m.duration.WithLabelValues(string(op))
	}
	return m
}

// done records the duration of an operation, successful or not.
func (m *Metrics) done(op operation, took time.Duration) {
	m.duration.WithLabelValues(string(op)).Observe(max(took, 0).Seconds())
}
