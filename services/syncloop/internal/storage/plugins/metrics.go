package plugins

import (
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// The kubelet's names of the states of Count.
const (
	StateDesired = "desired_state_of_world"
	StateActual  = "actual_state_of_world"
)

// Count is a socket in a state.
type Count struct {
	// Socket is the path; State is StateDesired or StateActual.
	Socket, State string
}

// Metrics has the number of plugins.
type Metrics struct{ registry prometheus.Registerer }

// NewMetrics returns the metrics of one Manager, which are registered by Expose; never with a nil registry.
func NewMetrics(registry prometheus.Registerer) *Metrics { return &Metrics{registry: registry} }

// Expose registers the number of plugins, which are counted at each scrape. New calls it.
func (m *Metrics) Expose(count func() []Count) {
	if m.registry == nil {
		return
	}
	m.registry.MustRegister(&collector{count: count, total: prometheus.NewDesc("plugin_manager_total_plugins",
		"Plugins by socket: those with a socket in the folder, and the registered ones.",
		[]string{"socket_path", "state"}, nil)})
}

// collector implements prometheus.Collector.
type collector struct {
	count func() []Count
	total *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.total }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, one := range c.count() {
		if !utf8.ValidString(one.Socket) { // it cannot be a label
			continue
		}
		ch <- prometheus.MustNewConstMetric(c.total, prometheus.GaugeValue, 1, one.Socket, one.State)
	}
}
