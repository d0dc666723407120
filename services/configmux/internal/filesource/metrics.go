package filesource

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts reads and errors of manifests.
type Metrics struct {
	read, failed  prometheus.Counter
	files, broken prometheus.Gauge
}

// NewMetrics registers the metrics of one file source.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		read: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quartet_configmux_manifests_read_total", Help: "Manifests read with new or changed content.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quartet_configmux_manifests_failed_total",
			Help: "Manifests found invalid or unreadable, counted for each new error.",
		}),
		files: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_configmux_manifests", Help: "Present manifests.",
		}),
		broken: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_configmux_manifests_broken", Help: "Present manifests with errors.",
		}),
	}
	registry.MustRegister(m.read, m.failed, m.files, m.broken)
	return m
}

// taken counts a processed content, and whether it has errors.
func (m *Metrics) taken(wrong bool) {
	m.read.Inc()
	if wrong {
		m.failed.Inc()
	}
}

// countPresent counts the present manifests after a turn.
func (m *Metrics) countPresent(files map[string]*file) {
	broken := 0
	for _, f := range files {
		if len(f.errs) > 0 {
			broken++
		}
	}
	m.files.Set(float64(len(files)))
	m.broken.Set(float64(broken))
}
