package logrotate

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts rotations of container logs.
type Metrics struct {
	rotations, errors prometheus.Counter
}

// NewMetrics registers the metrics of a Rotator; a nil registry registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	return &Metrics{
		rotations: factory.NewCounter(prometheus.CounterOpts{
			Name: "quartet_container_log_rotations_total",
			Help: "Files of container logs that were rotated because they had reached containerLogMaxSize.",
		}),
		errors: factory.NewCounter(prometheus.CounterOpts{
			Name: "quartet_container_log_rotation_errors_total",
			Help: "Failures to rotate, compress or remove files of container logs.",
		}),
	}
}

// rotated counts a rotated file.
func (m *Metrics) rotated() { m.rotations.Inc() }

// failed counts a failed turn or compression.
func (m *Metrics) failed() { m.errors.Inc() }

// Used is the size of the logs of a container.
type Used struct {
	UID, Namespace, Pod, Container string
	// Bytes is the total size of all files, including those of ended containers of the same name.
	Bytes int64
}

// measureLimit is how long a scrape waits for the sizes. A healthy disk takes milliseconds.
const measureLimit = 2 * time.Second

// Expose registers the sizes of logs. usage is called at each scrape. The sizes are exposed even if no log is rotated.
// A scrape has no sizes while the disk hangs; the other metrics do not wait for it.
func Expose(registry prometheus.Registerer, usage func() []Used) {
	registry.MustRegister(&collector{usage: usage, used: prometheus.NewDesc("kubelet_container_log_filesystem_used_bytes",
		"Size in bytes of the log files of a container.", []string{"uid", "namespace", "pod", "container"}, nil)})
}

// collector implements prometheus.Collector.
type collector struct {
	usage func() []Used
	used  *prometheus.Desc

	mu sync.Mutex
	// running is the call of usage that has not ended; nil if there is none.
	running *measurement
}

// measurement is a call of usage.
type measurement struct {
	// done is closed when used is there.
	done chan struct{}
	used []Used
}

// measure returns the sizes, or nothing if they take too long. There is at most one call of usage at a time.
func (c *collector) measure() []Used {
	c.mu.Lock()
	m := c.running
	if m == nil {
		m = &measurement{done: make(chan struct{})}
		c.running = m
		go func() {
			m.used = c.usage()
			c.mu.Lock()
			c.running = nil
			c.mu.Unlock()
			close(m.done)
		}()
	}
	c.mu.Unlock()
	timer := time.NewTimer(measureLimit)
	defer timer.Stop()
	select {
	case <-m.done:
		return m.used
	case <-timer.C:
		return nil
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.used }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, u := range c.measure() {
		ch <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, float64(u.Bytes),
			u.UID, u.Namespace, u.Pod, u.Container)
	}
}
