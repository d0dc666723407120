package deviceplugins

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics has the kubelet's metrics of device plugins.
type Metrics struct {
	registrations *prometheus.CounterVec
	durations     *prometheus.HistogramVec
}

// NewMetrics registers the metrics of one Manager; with a nil registry they are not registered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	return &Metrics{
		registrations: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_device_plugin_registration_total", Help: "Registrations of device plugins by resource.",
		}, []string{"resource_name"}),
		durations: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_device_plugin_alloc_duration_seconds",
			Help: "Durations of calls of Allocate of device plugins by resource.", Buckets: prometheus.DefBuckets,
		}, []string{"resource_name"}),
	}
}

func (m *Metrics) registered(resource string) { m.registrations.WithLabelValues(resource).Inc() }

func (m *Metrics) allocated(resource string, took time.Duration) {
	m.durations.WithLabelValues(resource).Observe(took.Seconds())
}
