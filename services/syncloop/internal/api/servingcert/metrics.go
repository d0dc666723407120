package servingcert

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Expose registers the metrics of a serving certificate that the cluster signs. It calls the functions at each scrape:
// expires returns when the certificate expires, or the zero time if there is none; failures returns the number of
// failed requests for a certificate.
func Expose(registry prometheus.Registerer, expires func() time.Time, failures func() int64) {
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubelet_certificate_manager_server_ttl_seconds",
			Help: "Seconds until the serving certificate that the cluster has signed expires, negative after that, and +Inf without one.",
		}, func() float64 {
			if at := expires(); !at.IsZero() {
				return math.Trunc(time.Until(at).Seconds())
			}
			return math.Inf(1)
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "kubelet_server_expiration_renew_errors", Help: "Requests for a serving certificate that have failed.",
		}, func() float64 { return float64(failures()) }),
	)
}
