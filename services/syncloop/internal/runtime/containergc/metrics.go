package containergc

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Kinds of removed items.
const (
	kindContainer = "container"
	kindSandbox   = "sandbox"
)

// Metrics counts the removals of unneeded containers and sandboxes.
type Metrics struct {
	removed *prometheus.CounterVec
	errors  prometheus.Counter
}

// NewMetrics registers the metrics of a Collector; a nil registry registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	m := &Metrics{
		removed: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_garbage_removed_total",
			Help: "Unneeded containers and sandboxes removed from the runtime, except those of pods that no longer exist.",
		}, []string{"kind"}),
		errors: factory.NewCounter(prometheus.CounterOpts{
			Name: "quartet_garbage_removal_errors_total", Help: "Failed removals of unneeded containers and sandboxes.",
		}),
	}
	for _, kind := range []string{kindContainer, kindSandbox} {
		m.removed.WithLabelValues(kind)
	}
	return m
}

// done counts a removed item.
func (m *Metrics) done(item Item) {
	kind := kindSandbox
	if item.Container != nil {
		kind = kindContainer
	}
	m.removed.WithLabelValues(kind).Inc()
}

// failed counts a failed removal.
func (m *Metrics) failed() { m.errors.Inc() }
