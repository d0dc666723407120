package podcertificates

import "github.com/prometheus/client_golang/prometheus"

// Expose registers the number of certificates by signer and state. It calls count at each scrape.
func Expose(registry prometheus.Registerer, count func() map[Counted]int) {
	registry.MustRegister(&collector{count: count, states: prometheus.NewDesc("kubelet_podcertificate_states",
		"Certificate sources of volumes, by signer and state.", []string{"signer_name", "state"}, nil)})
}

// collector implements prometheus.Collector.
type collector struct {
	count  func() map[Counted]int
	states *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.states }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for counted, n := range c.count() {
		state := string(counted.State)
		ch <- prometheus.MustNewConstMetric(c.states, prometheus.GaugeValue, float64(n), counted.Signer, state)
	}
}
