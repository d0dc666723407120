package metrics

import "github.com/prometheus/client_golang/prometheus"

// logMetrics count what is done to the logs of containers.
type logMetrics struct {
	rotated, failed prometheus.Counter
}

func newLogMetrics(f factory) logMetrics {
	return logMetrics{
		rotated: f.counter(quartet, "container_log_rotations_total", "Files of containers' logs put aside since they had grown to containerLogMaxSize."),
		failed:  f.counter(quartet, "container_log_rotation_errors_total", "Times that the files of a container's log could not be put aside, compressed or removed."),
	}
}

// LogRotated notes that a file of a container's log was put aside.
func (m *Metrics) LogRotated() { m.logs.rotated.Inc() }

// LogRotationFailed notes that the files of a container's log could not be put in order.
func (m *Metrics) LogRotationFailed() { m.logs.failed.Inc() }

// LogUsage is what the logs of a container take.
type LogUsage struct {
	UID, Namespace, Pod, Container string
	// Bytes is the size of all files together, those of ended containers of the name among them.
	Bytes int64
}

// CollectLogs registers what logs take, which usage says when somebody asks. It panics when that is registered already.
func CollectLogs(registerer prometheus.Registerer, usage func() []LogUsage) {
	registerer.MustRegister(&logCollector{usage: usage, used: prometheus.NewDesc(kubelet+"_container_log_filesystem_used_bytes",
		"Bytes that the log files of a container take.", []string{"uid", "namespace", "pod", "container"}, nil)})
}

// logCollector implements prometheus.Collector.
type logCollector struct {
	usage func() []LogUsage
	used  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *logCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.used }

// Collect implements prometheus.Collector.
func (c *logCollector) Collect(ch chan<- prometheus.Metric) {
	for _, u := range c.usage() {
		ch <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, float64(u.Bytes), u.UID, u.Namespace, u.Pod, u.Container)
	}
}
