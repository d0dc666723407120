package loop

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// event names what the sync loop has turned for.
type event string

// The events of the sync loop, one for each of its channels.
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

// turnBuckets reach from what the loop takes for an event that matters to nobody to a turn that holds up the node, in seconds.
var turnBuckets = prometheus.ExponentialBuckets(0.00001, 4, 10)

// Metrics counts and times the turns, and counts what the loop decides.
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
			Name: "kubelet_admission_rejections_total", Help: "Pods that were not let in, by the reason in their status.",
		}, []string{"reason"}),
		preemption: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_preemptions", Help: "Pods ended so that a critical one could be let in, by the resource that was missing for it.",
		}, []string{"preemption_signal"}),
		orphans: factory.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_orphaned_runtime_pods_total", Help: "Pods that were found running, that no source names and that no worker knew.",
		}),
		resizes: newResizeMetrics(factory),
		factory: factory,
	}
	for _, what := range []event{eventConfig, eventLifecycle, eventGate, eventNode, eventLeftovers, eventDue, eventHousekeeping} {
		m.turns.WithLabelValues(string(what))
	}
	return m
}

// Expose registers the time of the last turn, which lastTurn says at each scrape; the zero time before the first. New calls it.
func (m *Metrics) Expose(lastTurn func() time.Time) {
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quartet_loop_last_turn_timestamp_seconds",
		Help: "When the sync loop last turned, as seconds of the Unix epoch; 0 before its first turn.",
	}, func() float64 {
		if at := lastTurn(); !at.IsZero() {
			return float64(at.UnixNano()) / float64(time.Second)
		}
		return 0
	})
}

// turned notes that the loop has handled an event.
func (m *Metrics) turned(what event, took time.Duration) {
	m.turns.WithLabelValues(string(what)).Observe(max(took, 0).Seconds())
}

// orphanFound notes that something runs that nobody wants.
func (m *Metrics) orphanFound() { m.orphans.Inc() }

// refused notes that a pod is not let in.
func (m *Metrics) refused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// preempted notes that a pod is ended for a critical one, which lacks a resource.
func (m *Metrics) preempted(resource string) { m.preemption.WithLabelValues(resource).Inc() }
