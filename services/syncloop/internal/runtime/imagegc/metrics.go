package imagegc

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// cause is why an unused image is removed, as the kubelet labels it.
type cause string

// The causes: the image was unused for too long, or its file system is too full.
const (
	causeAge   cause = "age"
	causeSpace cause = "space"
)

// Metrics counts the removal of images that nobody uses.
type Metrics struct {
	removed, errors *prometheus.CounterVec
}

// NewMetrics registers the metrics of one Collector; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	m := &Metrics{
		removed: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_image_garbage_collected_total",
			Help: "Images removed since nobody used them for too long (age), or since their file system was too full (space).",
		}, []string{"reason"}),
		errors: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_image_collection_errors_total",
			Help: "Rounds of the collection of unused images that failed, by the reason that the kubelet's event of it has.",
		}, []string{"reason"}),
	}
	for _, of := range []cause{causeAge, causeSpace} {
		m.removed.WithLabelValues(string(of))
	}
	return m
}

// collected notes that an image was removed.
func (m *Metrics) collected(of cause) { m.removed.WithLabelValues(string(of)).Inc() }

// failed notes that unused images could not be removed, or were not enough. The reason is one word.
func (m *Metrics) failed(reason string) { m.errors.WithLabelValues(reason).Inc() }
