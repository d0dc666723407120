package containergc

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The kinds of what is removed.
const (
	kindContainer = "container"
	kindSandbox   = "sandbox"
)

// Metrics counts the removal of containers and sandboxes that nobody needs.
type Metrics struct {
	removed *prometheus.CounterVec
	errors  prometheus.Counter
}

// NewMetrics registers the metrics of one Collector; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	m := &Metrics{
		removed: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_garbage_removed_total",
			Help: "Containers and sandboxes removed from the runtime since nobody needs them; not those of pods that are gone.",
		}, []string{"kind"}),
		errors: factory.NewCounter(prometheus.CounterOpts{
			Name: "quartet_garbage_removal_errors_total", Help: "Times that a container or sandbox that nobody needs could not be removed.",
		}),
	}
	for _, kind := range []string{kindContainer, kindSandbox} {
		m.removed.WithLabelValues(kind)
	}
	return m
}

// done notes that something was removed.
func (m *Metrics) done(item Item) {
	kind := kindSandbox
	if item.Container != nil {
		kind = kindContainer
	}
	m.removed.WithLabelValues(kind).Inc()
}

// failed notes that something could not be removed.
func (m *Metrics) failed() { m.errors.Inc() }
