package shutdown

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics exposes the last shutdown, and whether the next one is delayed for this node.
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
		started: gauge(
			"kubelet_graceful_shutdown_start_time_seconds",
			"Start of the last termination of pods for a shutdown of the machine, in seconds since 1970; 0 if there was none.",
		),
		ended: gauge(
			"kubelet_graceful_shutdown_end_time_seconds",
			"End of the last termination of pods for a shutdown of the machine, in seconds since 1970; 0 until then.",
		),
		waits: gauge(
			"quartet_nodestatus_shutdown_lock",
			"1 while logind delays a shutdown of the machine until the pods have ended.",
		),
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
