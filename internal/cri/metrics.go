package cri

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// operations counts calls to the runtime with the kubelet's names, labels and buckets, so that dashboards for a kubelet
// show them. As in the kubelet, calls that fail before they are sent are counted too.
type operations struct {
	total    *prometheus.CounterVec
	errors   *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// operationLabel is the label for the call, in the kubelet's words, for example run_podsandbox.
const operationLabel = "operation_type"

// newOperations creates the metrics, and registers them unless the registry is nil.
func newOperations(registry prometheus.Registerer) *operations {
	o := &operations{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_total", Help: "Calls of the container runtime, by operation.",
		}, []string{operationLabel}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_errors_total",
			Help: "Calls of the container runtime that failed, by operation; also those whose failure is expected, as for a container that is gone.",
		}, []string{operationLabel}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_runtime_operations_duration_seconds",
			Help:    "How long calls of the container runtime took, by operation.",
			Buckets: prometheus.ExponentialBuckets(.005, 2.5, 14),
		}, []string{operationLabel}),
	}
	if registry != nil {
		registry.MustRegister(o.total, o.errors, o.duration)
	}
	return o
}

// done counts one call that has just ended.
func (o *operations) done(operation string, began time.Time, err error) {
	o.total.WithLabelValues(operation).Inc()
	o.duration.WithLabelValues(operation).Observe(time.Since(began).Seconds())
	// The counter is created without a failure too, because a rate needs the 0 before the first error.
	failed := o.errors.WithLabelValues(operation)
	if err != nil {
		failed.Inc()
	}
}

// counted makes one call that returns a value.
func counted[T any](o *operations, operation string, call func() (T, error)) (T, error) {
	began := time.Now()
	value, err := call()
	o.done(operation, began, err)
	return value, err
}

// countedOnly makes one call that returns nothing but an error.
func countedOnly(o *operations, operation string, call func() error) error {
	began := time.Now()
	err := call()
	o.done(operation, began, err)
	return err
}
