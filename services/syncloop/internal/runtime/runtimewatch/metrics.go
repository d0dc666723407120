package runtimewatch

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// unsupportedIn is the version of Kubernetes that needs the call RuntimeConfig of the CRI.
const unsupportedIn = "1.38.0"

// Metrics has whether the runtime will not be supported by a later version.
type Metrics struct{ losing *prometheus.GaugeVec }

// NewMetrics registers the metric, which has no sample at first.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	return &Metrics{losing: promauto.With(registry).NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubelet_cri_losing_support",
		Help: "1 if a version of Kubernetes does not support the container runtime any more.",
	}, []string{"version"})}
}

// LosesSupport records that the runtime lacks a call that a later version needs.
func (m *Metrics) LosesSupport() {
	if m != nil {
		m.losing.WithLabelValues(unsupportedIn).Set(1)
	}
}
