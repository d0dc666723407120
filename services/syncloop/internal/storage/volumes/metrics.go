package volumes

import (
	"strconv"
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
	// Block devices have names of their own.
	measuredMap   measured = "map_volume"
	measuredUnmap measured = "unmap_volume"
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
	operations, whole *prometheus.HistogramVec
	registry          prometheus.Registerer
}

// NewMetrics creates the metrics of one Manager, and registers them unless the registry is nil.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	return &Metrics{
		operations: promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Buckets: operationBuckets,
			Help: "Duration of setting up and removing a volume, by kind and result.",
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
		whole: promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
			Name: "volume_operation_total_seconds", Buckets: operationBuckets,
			Help: "Time from the first request of a volume until it is set up, by kind.",
		}, []string{"plugin_name", "operation_name"}),
		registry: registry,
	}
}

// Done records an operation on a volume of a kind by its name in the kubelet, for example "unmount_device", and its
// error. migrated is true for a volume of a kind that a CSI driver has replaced.
func (m *Metrics) Done(plugin, operation string, migrated bool, took time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.operations.WithLabelValues(plugin, operation, status, strconv.FormatBool(migrated)).Observe(max(took, 0).Seconds())
}

// mounted records that a volume of a kind has been set up for the first time, and how long its pod waited for it.
func (m *Metrics) mounted(plugin string, waited time.Duration) {
	m.whole.WithLabelValues(plugin, "overall_volume_mount").Observe(max(waited, 0).Seconds())
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
