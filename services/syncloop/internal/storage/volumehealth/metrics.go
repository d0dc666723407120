package volumehealth

import (
	"github.com/prometheus/client_golang/prometheus"
	storagev1 "k8s.io/api/storage/v1"
)

// Expose registers the kubelet's metric of the health of the drivers' storage, which is read at each scrape.
func Expose(registry prometheus.Registerer, read func() map[string][]storagev1.StorageHealthCondition) {
	registry.MustRegister(collector{read: read, desc: prometheus.NewDesc("csi_node_storage_health_status",
		"CSI node storage backend health conditions currently reported (1 = present).",
		[]string{"driver_name", "status", "reason"}, nil)})
}

// collector implements prometheus.Collector.
type collector struct {
	read func() map[string][]storagev1.StorageHealthCondition
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector. Conditions that differ in their modes only are one.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	type key struct{ driver, status, reason string }
	seen := map[key]bool{}
	for driver, conditions := range c.read() {
		for i := range conditions {
			k := key{driver, string(conditions[i].Status), conditions[i].Reason}
			if !seen[k] {
				seen[k] = true
				ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, 1, k.driver, k.status, k.reason)
			}
		}
	}
}
