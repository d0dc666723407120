package certificates

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// Collectors returns the metrics of a certificate under the kubelet's names. usage is "client" or "server".
func (m *Manager) Collectors(usage string) []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubelet_certificate_manager_" + usage + "_ttl_seconds",
			Help: "Seconds until the node's " + usage + " certificate expires: negative when it has, +Inf when there is none.",
		}, func() float64 {
			expires := m.Expires()
			if expires.IsZero() {
				return math.Inf(1)
			}
			return expires.Sub(m.cfg.Requester.Clock.Now()).Seconds()
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "kubelet_certificate_manager_" + usage + "_expiration_renew_errors",
			Help: "Requests of a " + usage + " certificate that have failed.",
		}, func() float64 { return float64(m.Failures()) }),
	}
}
