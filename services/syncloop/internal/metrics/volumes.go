package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// VolumeOperation names what is done to a volume, as the kubelet does.
type VolumeOperation string

// What is done to volumes: each is set up, brought up to date included, and removed.
const (
	VolumeMount   VolumeOperation = "volume_mount"
	VolumeUnmount VolumeOperation = "volume_unmount"
)

// The states of VolumeCount, as the kubelet names them.
const (
	VolumesDesired = "desired_state_of_world"
	VolumesActual  = "actual_state_of_world"
)

// VolumeCount is how many volumes of a kind there are in a state.
type VolumeCount struct {
	// Plugin is the kind, for example "kubernetes.io/empty-dir"; State one of VolumesDesired and VolumesActual.
	Plugin, State string
	Volumes       int
}

// volumeBuckets are the kubelet's, in seconds.
var volumeBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}

// volumeMetrics count and time what is done for volumes.
type volumeMetrics struct {
	operations              *prometheus.HistogramVec
	images, mounted, failed prometheus.Counter
}

func newVolumeMetrics(f factory) volumeMetrics {
	return volumeMetrics{
		operations: f.histograms("", "storage_operation_duration_seconds", "How long setting up and removing a volume took, by its kind and by whether it went well.",
			volumeBuckets, "volume_plugin", "operation_name", "status", "migrated"),
		images:  f.counter(kubelet, "image_volume_requested_total", "Images that containers were to be created with as volumes."),
		mounted: f.counter(kubelet, "image_volume_mounted_succeed_total", "Those that the runtime did not refuse."),
		failed:  f.counter(kubelet, "image_volume_mounted_errors_total", "Those that the runtime could not mount."),
	}
}

// ImageVolumes notes that a container was to be created with so many images as volumes, and whether the runtime could mount them.
func (m *Metrics) ImageVolumes(count int, mounted bool) {
	m.volumes.images.Add(float64(count))
	if mounted {
		m.volumes.mounted.Add(float64(count))
	} else {
		m.volumes.failed.Add(float64(count))
	}
}

// VolumeOperation notes what was done to a volume of a kind, and what it failed of.
func (m *Metrics) VolumeOperation(plugin string, op VolumeOperation, took time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.volumes.operations.WithLabelValues(plugin, string(op), status, "false").Observe(seconds(took))
}

// CollectVolumes registers how many volumes there are, counted when somebody asks. It panics when that is registered already.
func CollectVolumes(registerer prometheus.Registerer, count func() []VolumeCount) {
	registerer.MustRegister(&volumeCollector{count: count, total: prometheus.NewDesc("volume_manager_total_volumes",
		"Volumes of pods by their kind: those that are wanted, and those that are there.", []string{"plugin_name", "state"}, nil)})
}

// volumeCollector implements prometheus.Collector.
type volumeCollector struct {
	count func() []VolumeCount
	total *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *volumeCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.total }

// Collect implements prometheus.Collector.
func (c *volumeCollector) Collect(ch chan<- prometheus.Metric) {
	for _, one := range c.count() {
		ch <- prometheus.MustNewConstMetric(c.total, prometheus.GaugeValue, float64(one.Volumes), one.Plugin, one.State)
	}
}
