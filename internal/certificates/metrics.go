package certificates

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// Collectors returns the metrics of a certificate under the kubelet's names. whose is "client" or "server".
func (m *Manager) Collectors(whose string) []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubelet_certificate_manager_" + whose + "_ttl_seconds",
			Help: "Seconds until the node's " + whose + " certificate expires: negative when it has, +Inf when there is none.",
		}, func() float64 {
			expires := m.Expires()
			if expires.IsZero() {
				return math.Inf(1)
			}
			return expires.Sub(m.cfg.Requester.Clock.Now()).Seconds()
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "kubelet_certificate_manager_" + whose + "_expiration_renew_errors",
			Help: "Requests of a " + whose + " certificate that have failed.",
		}, func() float64 { return float64(m.Failures()) }),
	}
}
