package volumes

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// measured names an operation as the kubelet's metrics do.
type measured string

// The operations: setting a volume up, which includes updating it, and removing it.
const (
	measuredMount   measured = "volume_mount"
	measuredUnmount measured = "volume_unmount"
)

// The kubelet's names of the states of Count.
const (
	StateDesired = "desired_state_of_world"
	StateActual  = "actual_state_of_world"
)

// Count is the number of volumes of a kind in a state.
type Count struct {
	// Plugin is the kind, for example "kubernetes.io/empty-dir"; State is StateDesired or StateActual.
	Plugin, State string
	Volumes       int
}

// operationBuckets are the kubelet's, in seconds.
var operationBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}

// Metrics times operations on volumes.
type Metrics struct {
	operations *prometheus.HistogramVec
	registry   prometheus.Registerer
}

// NewMetrics creates the metrics of one Manager, and registers them unless the registry is nil.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	return &Metrics{
		operations: promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Buckets: operationBuckets,
			Help: "Duration of setting up and removing a volume, by kind and result.",
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
		registry: registry,
	}
}

// done records an operation on a volume of a kind, and its error.
func (m *Metrics) done(plugin string, op measured, took time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.operations.WithLabelValues(plugin, string(op), status, "false").Observe(max(took, 0).Seconds())
}

// Expose registers the numbers of volumes, which are counted at each scrape. New calls it.
func (m *Metrics) Expose(count func() []Count) {
	if m.registry == nil {
		return
	}
	m.registry.MustRegister(&collector{count: count, total: prometheus.NewDesc("volume_manager_total_volumes",
		"Volumes of pods by kind: desired and existing ones.", []string{"plugin_name", "state"}, nil)})
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
		ch <- prometheus.MustNewConstMetric(c.total, prometheus.GaugeValue, float64(one.Volumes), one.Plugin, one.State)
	}
}
