package imagecredentials

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts and times the runs of plugins, and exposes the digest of their configuration.
type Metrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	config   *prometheus.GaugeVec
}

// NewMetrics registers the metrics of a Providers; a nil registry registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	return &Metrics{
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_credential_provider_plugin_duration", Buckets: prometheus.DefBuckets,
			Help: "Seconds that runs of credential provider plugins took, by plugin.",
		}, []string{"plugin_name"}),
		errors: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_credential_provider_plugin_errors_total",
			Help: "Runs of credential provider plugins that failed or were killed, by plugin.",
		}, []string{"plugin_name"}),
		config: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_credential_provider_config_info",
			Help: "1 for the digest of the configuration of credential providers that is in effect.",
		}, []string{"hash"}),
	}
}

// configured exposes the digest of the configuration in effect. It is not called without a configuration.
func (m *Metrics) configured(hash string) {
	if hash != "" {
		m.config.WithLabelValues(hash).Set(1)
	}
}

// ran records a run of a plugin: its duration, and whether it failed. It does not judge the response.
func (m *Metrics) ran(plugin string, took time.Duration, failed bool) {
	m.duration.WithLabelValues(plugin).Observe(max(took, 0).Seconds())
	if failed {
		m.errors.WithLabelValues(plugin).Inc()
	}
}
