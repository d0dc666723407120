package journal

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts the writes of the journal.
type Metrics struct {
	writes, errors prometheus.Counter
	size           prometheus.Gauge
}

// NewMetrics registers the metrics of one Book.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		writes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quartet_pleg_told_writes_total", Help: "Writes of the journal, from which pleg continues after a restart.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quartet_pleg_told_errors_total", Help: "Failed writes of the journal.",
		}),
		size: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_pleg_told_bytes", Help: "Size of the journal.",
		}),
	}
	registry.MustRegister(m.writes, m.errors, m.size)
	return m
}

func (m *Metrics) wrote(size int, err error) {
	m.writes.Inc()
	m.size.Set(float64(size))
	if err != nil {
		m.errors.Inc()
	}
}
