package podworkers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// operation is the kubelet's name for a piece of work.
type operation string

// The operations: the first sync of a worker, a sync because the desired pod has changed, any other sync, the
// termination of a pod, and its cleanup.
const (
	operationCreate     operation = "create"
	operationUpdate     operation = "update"
	operationSync       operation = "sync"
	operationKill       operation = "kill"
	operationTerminated operation = "terminated"
)

// Metrics counts and times the work.
type Metrics struct {
	duration         *prometheus.HistogramVec
	start            prometheus.Histogram
	retries, revived *prometheus.CounterVec
	registry         prometheus.Registerer
}

// NewMetrics registers the metrics of one Pool; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	m := &Metrics{
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_duration_seconds", Buckets: prometheus.DefBuckets,
			Help: "Time from the request of a worker's work to its end, by operation: create, update, sync, kill, terminated.",
		}, []string{"operation_type"}),
		start: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_start_duration_seconds", Buckets: prometheus.DefBuckets,
			Help: "Time from the first sight of a new pod to the beginning of its start by a worker.",
		}),
		retries: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_pod_worker_retries_total",
			Help: "Failed pieces of a worker's work that are retried after a pause, by reason.",
		}, []string{"reason"}),
		revived: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_restarted_pods_total",
			Help: "Pods that came back with the UID of a pod that was still ending, and were started after its end.",
		}, []string{"static"}),
		registry: registry,
	}
	// A series that exists from the beginning shows its first increase.
	for _, class := range failures() {
		m.retries.WithLabelValues(class.label)
	}
	for _, static := range []bool{false, true} {
		m.revived.WithLabelValues(StaticLabel(static))
	}
	return m
}

// worked records the end of a piece of work, successful or not, and the time since its request.
func (m *Metrics) worked(op operation, took time.Duration) {
	m.duration.WithLabelValues(string(op)).Observe(max(took, 0).Seconds())
}

// started records that a worker begins to start a new pod. A negative time, after the wall clock was set back, counts
// as 0.
func (m *Metrics) started(sinceSeen time.Duration) { m.start.Observe(max(sinceSeen, 0).Seconds()) }

// retried records that a piece of work has failed and will be retried.
func (m *Metrics) retried(class failure) { m.retries.WithLabelValues(class.label).Inc() }

// restarted records the new start of a pod that came back while it was ending.
func (m *Metrics) restarted(static bool) {
	m.revived.WithLabelValues(StaticLabel(static)).Inc()
}

// StaticLabel returns the value of the kubelet's label "static".
func StaticLabel(static bool) string {
	if static {
		return "true"
	}
	return ""
}

// Census holds the counts of a Pool at a scrape.
type Census struct {
	// States counts the workers by the state of their pod.
	States map[string]int
	// Busy, Failing and Pending count the workers that are working, those whose last work failed, and those with an update
	// that they have not begun with.
	Busy, Failing, Pending int
	// Queued counts the pods that wait for the end of another pod of their name, or of their own earlier life.
	Queued int
}

// Expose registers the counts of census, which is called at each scrape. NewPool calls it.
func (m *Metrics) Expose(census func() Census) {
	if m.registry == nil {
		return
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m.registry.MustRegister(&collector{
		census:  census,
		workers: desc("quartet_pod_workers", "Workers by the state of their pod: syncing, terminating, terminated.", "state"),
		busy:    desc("quartet_pod_workers_busy", "Workers that are working now."),
		failing: desc("quartet_pod_workers_failing", "Workers whose last work failed."),
		pending: desc("quartet_pod_worker_updates_pending",
			"Updates that a worker has not begun with. A worker keeps one at most, into which later ones are folded."),
		queued: desc("quartet_pods_waiting_for_name", "Pods that wait for the end of another pod of their name, or of their own earlier life."),
	})
}

// collector implements prometheus.Collector.
type collector struct {
	census func() Census

	workers, busy, failing, pending, queued *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.workers, c.busy, c.failing, c.pending, c.queued} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	census := c.census()
	for state, n := range census.States {
		gauge(c.workers, n, state)
	}
	gauge(c.busy, census.Busy)
	gauge(c.failing, census.Failing)
	gauge(c.pending, census.Pending)
	gauge(c.queued, census.Queued)
}
