package volumes

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// measured names what is done to a volume, as the kubelet's metrics do.
type measured string

// The operations: a volume is set up, which includes bringing it up to date, and removed.
const (
	measuredMount   measured = "volume_mount"
	measuredUnmount measured = "volume_unmount"
)

// The states of Count, as the kubelet names them.
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

// Metrics times what is done for volumes.
type Metrics struct {
	operations *prometheus.HistogramVec
	registry   prometheus.Registerer
}

// NewMetrics registers the metrics of one Manager; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	return &Metrics{
		operations: promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Buckets: operationBuckets,
			Help: "How long setting up and removing a volume took, by its kind and by whether it went well.",
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
		registry: registry,
	}
}

// done notes an operation on a volume of a kind, and its error.
func (m *Metrics) done(plugin string, what measured, took time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.operations.WithLabelValues(plugin, string(what), status, "false").Observe(max(took, 0).Seconds())
}

// Expose registers the numbers of volumes, which count says at each scrape. New calls it.
func (m *Metrics) Expose(count func() []Count) {
	if m.registry == nil {
		return
	}
	m.registry.MustRegister(&collector{count: count, total: prometheus.NewDesc("volume_manager_total_volumes",
		"Volumes of pods by their kind: those that are wanted, and those that are there.", []string{"plugin_name", "state"}, nil)})
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
