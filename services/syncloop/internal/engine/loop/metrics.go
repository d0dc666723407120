package loop

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// event is the kind of an event of the sync loop.
type event string

// The kinds of events, one for each channel.
const (
	eventConfig       event = "config"
	eventLifecycle    event = "lifecycle"
	eventProbe        event = "probe"
	eventGate         event = "gate"
	eventNode         event = "node"
	eventLeftovers    event = "leftovers"
	eventDue          event = "due"
	eventHousekeeping event = "housekeeping"
)

// turnBuckets range from the time for an irrelevant event to the time of one that delays the node, in seconds.
var turnBuckets = prometheus.ExponentialBuckets(0.00001, 4, 10)

// Metrics counts and times the events, and counts the decisions of the loop.
type Metrics struct {
	turns                *prometheus.HistogramVec
	refusals, preemption *prometheus.CounterVec
	orphans              prometheus.Counter
	resizes              resizeMetrics
	factory              promauto.Factory
}

// NewMetrics registers the metrics of one Loop; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	m := &Metrics{
		turns: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quartet_loop_turn_duration_seconds", Buckets: turnBuckets,
			Help: "How long the sync loop took to handle one event, by the kind of event. The count is the number of events.",
		}, []string{"event"}),
		refusals: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_admission_rejections_total", Help: "Pods that were not admitted, by the reason in their status.",
		}, []string{"reason"}),
		preemption: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_preemptions", Help: "Pods preempted for a critical pod, by the resource that it lacked.",
		}, []string{"preemption_signal"}),
		orphans: factory.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_orphaned_runtime_pods_total", Help: "Running pods that no source names and that had no worker.",
		}),
		resizes: newResizeMetrics(factory),
		factory: factory,
	}
	for _, e := range []event{
		eventConfig, eventLifecycle, eventGate, eventNode, eventLeftovers, eventDue, eventHousekeeping,
	} {
		m.turns.WithLabelValues(string(e))
	}
	return m
}

// Expose registers the time of the last event, from lastTurn at each scrape; zero before the first. New calls it.
func (m *Metrics) Expose(lastTurn func() time.Time) {
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quartet_loop_last_turn_timestamp_seconds",
		Help: "Time of the last event of the sync loop, in seconds of the Unix epoch; 0 before the first.",
	}, func() float64 {
		if at := lastTurn(); !at.IsZero() {
			return float64(at.UnixNano()) / float64(time.Second)
		}
		return 0
	})
}

// turned records a handled event.
func (m *Metrics) turned(e event, took time.Duration) {
	m.turns.WithLabelValues(string(e)).Observe(max(took, 0).Seconds())
}

// orphanFound counts a running pod that no source names.
func (m *Metrics) orphanFound() { m.orphans.Inc() }

// refused counts a pod that was not admitted.
func (m *Metrics) refused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// CountRejected counts a pod that was rejected after its admission.
func (l *Loop) CountRejected(reason string) { l.cfg.Metrics.refused(reason) }

// preempted counts a pod that is ended for a critical one, by the missing resource.
func (m *Metrics) preempted(resource string) { m.preemption.WithLabelValues(resource).Inc() }
