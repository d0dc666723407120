package logrotate

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts what is done to the logs of containers.
type Metrics struct {
	rotations, errors prometheus.Counter
}

// NewMetrics registers the metrics of one Rotator; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	return &Metrics{
		rotations: factory.NewCounter(prometheus.CounterOpts{
			Name: "quartet_container_log_rotations_total",
			Help: "Files of containers' logs put aside since they had grown to containerLogMaxSize.",
		}),
		errors: factory.NewCounter(prometheus.CounterOpts{
			Name: "quartet_container_log_rotation_errors_total",
			Help: "Times that the files of a container's log could not be put aside, compressed or removed.",
		}),
	}
}

// rotated notes that a file of a container's log was put aside.
func (m *Metrics) rotated() { m.rotations.Inc() }

// failed notes that the files of a container's log could not be put in order.
func (m *Metrics) failed() { m.errors.Inc() }

// Used is the size of the logs of a container.
type Used struct {
	UID, Namespace, Pod, Container string
	// Bytes is the size of all files together, those of ended containers of the name among them.
	Bytes int64
}

// Expose registers the sizes of logs, which usage says at each scrape. They are there when no log is rotated, too.
func Expose(registry prometheus.Registerer, usage func() []Used) {
	registry.MustRegister(&collector{usage: usage, used: prometheus.NewDesc("kubelet_container_log_filesystem_used_bytes",
		"Bytes that the log files of a container take.", []string{"uid", "namespace", "pod", "container"}, nil)})
}

// collector implements prometheus.Collector.
type collector struct {
	usage func() []Used
	used  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.used }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, u := range c.usage() {
		ch <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, float64(u.Bytes), u.UID, u.Namespace, u.Pod, u.Container)
	}
}
