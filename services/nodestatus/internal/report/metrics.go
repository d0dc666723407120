package report

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts sent statuses.
type Metrics struct {
	reports *prometheus.CounterVec
	last    prometheus.Gauge
}

// The results of an attempt.
const (
	resultSuccess = "success"
	resultError   = "error"
)

// NewMetrics registers the metrics of one Reporter.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_nodestatus_status_reports_total",
			Help: "Attempts to send the Node's status to the API server, by result.",
		}, []string{"result"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_nodestatus_status_reported_timestamp_seconds",
			Help: "Time at which the Node's status was last sent to the API server, in seconds since 1970; 0 before the first.",
		}),
	}
	for _, result := range []string{resultSuccess, resultError} {
		m.reports.WithLabelValues(result)
	}
	registry.MustRegister(m.reports, m.last)
	return m
}
