package metrics

import "github.com/prometheus/client_golang/prometheus"

// CertificateCount is how many certificates of a signer that pods are to have are in a state.
type CertificateCount struct {
	// Signer is the signer's name, State the kubelet's word for what has become of them, for example "fresh".
	Signer, State string
	Certificates  int
}

// CollectCertificates registers what has become of the certificates of pods, counted when somebody asks. It panics when that is
// registered already.
func CollectCertificates(registerer prometheus.Registerer, count func() []CertificateCount) {
	registerer.MustRegister(&certificateCollector{count: count, states: prometheus.NewDesc("kubelet_podcertificate_states",
		"Sources of volumes that are a certificate, by signer and by what has become of it.", []string{"signer_name", "state"}, nil)})
}

// certificateCollector implements prometheus.Collector.
type certificateCollector struct {
	count  func() []CertificateCount
	states *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *certificateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.states }

// Collect implements prometheus.Collector.
func (c *certificateCollector) Collect(ch chan<- prometheus.Metric) {
	for _, one := range c.count() {
		ch <- prometheus.MustNewConstMetric(c.states, prometheus.GaugeValue, float64(one.Certificates), one.Signer, one.State)
	}
}
