package shutdown

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics says how the last shutdown went, and whether the next one waits for this node.
type Metrics struct {
	started, ended, waits prometheus.Gauge
}

// NewMetrics registers the metrics of one Manager. The first two have the kubelet's names.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		registry.MustRegister(g)
		return g
	}
	return &Metrics{
		started: gauge("kubelet_graceful_shutdown_start_time_seconds", "When the pods were last begun to be ended for a shutdown of the machine, in seconds since 1970; 0 when they never were."),
		ended:   gauge("kubelet_graceful_shutdown_end_time_seconds", "When that was over, in seconds since 1970; 0 while it is not."),
		waits:   gauge("quartet_nodestatus_shutdown_lock", "1 while logind waits with a shutdown of the machine until the pods have ended."),
	}
}

func (m *Metrics) set(mem memory) {
	m.started.Set(seconds(mem.StartTime))
	m.ended.Set(seconds(mem.EndTime))
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.Unix())
}
