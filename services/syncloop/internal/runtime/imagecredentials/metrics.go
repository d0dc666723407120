package imagecredentials

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts and times the runs of plugins, and names their configuration.
type Metrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	config   *prometheus.GaugeVec
}

// NewMetrics registers the metrics of one Providers; a nil registry takes none.
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

// configured notes the digest of the configuration that is in effect; there is none without a configuration.
func (m *Metrics) configured(hash string) {
	if hash != "" {
		m.config.WithLabelValues(hash).Set(1)
	}
}

// ran notes a run of a plugin, by its name: how long it took, and whether it failed. What it has answered is not judged
// here.
func (m *Metrics) ran(plugin string, took time.Duration, failed bool) {
	m.duration.WithLabelValues(plugin).Observe(max(took, 0).Seconds())
	if failed {
		m.errors.WithLabelValues(plugin).Inc()
	}
}
