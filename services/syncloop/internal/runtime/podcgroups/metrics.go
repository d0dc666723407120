package podcgroups

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// operation names what is done to a cgroup, as the kubelet's metrics do.
type operation string

// The operations.
const (
	operationCreate  operation = "create"
	operationUpdate  operation = "update"
	operationDestroy operation = "destroy"
)

// Metrics times the operations on cgroups.
type Metrics struct {
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics of one Tree; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{duration: promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubelet_cgroup_manager_duration_seconds", Buckets: prometheus.DefBuckets,
		Help: "How long it took to make, change or remove the cgroup of a pod or of pods together, by operation: create, update, destroy.",
	}, []string{"operation_type"})}
	for _, what := range []operation{operationCreate, operationUpdate, operationDestroy} {
		m.duration.WithLabelValues(string(what))
	}
	return m
}

// done notes how long an operation took, whether it succeeded or not.
func (m *Metrics) done(what operation, took time.Duration) {
	m.duration.WithLabelValues(string(what)).Observe(max(took, 0).Seconds())
}
