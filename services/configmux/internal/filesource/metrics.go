package filesource

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what happens to manifests.
type Metrics struct {
	read, failed  prometheus.Counter
	files, broken prometheus.Gauge
}

// NewMetrics registers the metrics of one file source.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		read: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quartet_configmux_manifests_read_total", Help: "Contents of manifests taken in, each time that one was new or another.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quartet_configmux_manifests_failed_total", Help: "Manifests that turned out to be wrong or unreadable, each time that what is wrong was new.",
		}),
		files: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_configmux_manifests", Help: "Manifests that are there.",
		}),
		broken: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_configmux_manifests_broken", Help: "Manifests that are there and in which something is wrong.",
		}),
	}
	registry.MustRegister(m.read, m.failed, m.files, m.broken)
	return m
}

// taken counts a content that was taken in, and whether something is wrong in it.
func (m *Metrics) taken(wrong bool) {
	m.read.Inc()
	if wrong {
		m.failed.Inc()
	}
}

// there counts what is there after a turn.
func (m *Metrics) there(files map[string]*file) {
	broken := 0
	for _, f := range files {
		if len(f.errs) > 0 {
			broken++
		}
	}
	m.files.Set(float64(len(files)))
	m.broken.Set(float64(broken))
}
