package imagegc

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// cause is why an unused image is removed, as in the kubelet's label.
type cause string

// Causes: the image was unused for too long, or its file system is too full.
const (
	causeAge   cause = "age"
	causeSpace cause = "space"
)

// Metrics counts the removals of unused images.
type Metrics struct {
	removed, errors *prometheus.CounterVec
}

// NewMetrics registers the metrics of a Collector; a nil registry registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	m := &Metrics{
		removed: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_image_garbage_collected_total",
			Help: "Unused images removed because they were unused for too long (age), or because their file system was too full (space).",
		}, []string{"reason"}),
		errors: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_image_collection_errors_total",
			Help: "Failed rounds of the removal of unused images, by the reason of the kubelet's event.",
		}, []string{"reason"}),
	}
	for _, reason := range []cause{causeAge, causeSpace} {
		m.removed.WithLabelValues(string(reason))
	}
	return m
}

// collected counts a removed image.
func (m *Metrics) collected(reason cause) { m.removed.WithLabelValues(string(reason)).Inc() }

// failed counts a round that could not remove unused images, or not enough of them, by a reason of one word.
func (m *Metrics) failed(reason string) { m.errors.WithLabelValues(reason).Inc() }
