package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// credentialMetrics count and time the plugins of credential providers.
type credentialMetrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
}

func newCredentialMetrics(f factory) credentialMetrics {
	return credentialMetrics{
		duration: f.histograms(kubelet, "credential_provider_plugin_duration",
			"Seconds that runs of credential provider plugins took, by plugin.", prometheus.DefBuckets, "plugin_name"),
		errors: f.counters(kubelet, "credential_provider_plugin_errors_total",
			"Runs of credential provider plugins that failed or were killed, by plugin.", "plugin_name"),
	}
}

// CredentialPluginRan notes a run of a credential provider plugin, by its name: how long it took, and whether it failed. What it has
// answered is not judged here.
func (m *Metrics) CredentialPluginRan(plugin string, took time.Duration, failed bool) {
	m.credentials.duration.WithLabelValues(plugin).Observe(seconds(took))
	if failed {
		m.credentials.errors.WithLabelValues(plugin).Inc()
	}
}

// CollectCredentialConfig tells of the configuration of credential providers by the digest of its files.
func CollectCredentialConfig(registry prometheus.Registerer, hash string) {
	info := factory{registry}.gauges(kubelet, "credential_provider_config_info", "1 for the digest of the configuration of credential providers that is in effect.", "hash")
	info.WithLabelValues(hash).Set(1)
}
