package lease

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts renewals.
type Metrics struct {
	renewals    *prometheus.CounterVec
	last, taken prometheus.Gauge
}

// The results of a renewal.
const (
	resultSuccess = "success"
	resultError   = "error"
)

// NewMetrics registers the metrics of one Keeper.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_nodestatus_lease_renewals_total",
			Help: "Attempts to renew the node's lease in the API server, by result.",
		}, []string{"result"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_nodestatus_lease_renewed_timestamp_seconds",
			Help: "Time of the last renewal of the node's lease, in seconds since 1970; 0 before the first.",
		}),
		taken: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_nodestatus_lease_contended",
			Help: "1 while another agent renews the lease of this node, so that two have one node name.",
		}),
	}
	for _, result := range []string{resultSuccess, resultError} {
		m.renewals.WithLabelValues(result)
	}
	registry.MustRegister(m.renewals, m.last, m.taken)
	return m
}
