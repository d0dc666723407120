package relist

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

// Metrics counts relists, inspections and events. Those that a kubelet has too have its names and buckets.
type Metrics struct {
	relistDuration, relistInterval, inspectionDuration, latency prometheus.Histogram
	lastSeen                                                    prometheus.Gauge
	relistErrors, inspectionErrors, unannounced                 prometheus.Counter
	events                                                      map[lifecyclev1.EventType]prometheus.Counter
	registry                                                    prometheus.Registerer
}

// NewMetrics registers the metrics of one Relister.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.DefBuckets})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		relistDuration: histogram("kubelet_pleg_relist_duration_seconds",
			"How long a full relist took: listing everything, and inspecting the pods that have changed for as long as it waits for them."),
		relistInterval: histogram("kubelet_pleg_relist_interval_seconds",
			"From the beginning of the last full relist that worked to the beginning of the next."),
		inspectionDuration: histogram("kubelet_pleg_pod_relist_duration_seconds", "How long the inspection of one pod took."),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			// Some milliseconds with events, up to a second without, up to the period of full relists when an event was lost.
			Name: "quartet_pleg_event_latency_seconds", Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
			Help: "From the runtime's time of a container's start or end to its event. One that happened while this process was away has that long.",
		}),
		lastSeen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_pleg_last_seen_seconds", Help: "When the last full relist that worked began, in seconds since 1970; 0 before the first.",
		}),
		relistErrors:     counter("quartet_pleg_relist_errors_total", "Full relists that failed."),
		inspectionErrors: counter("quartet_pleg_inspection_errors_total", "Inspections of a pod that failed."),
		unannounced: counter("quartet_pleg_unannounced_changes_total",
			"Changes of a pod that an inspection found and that no event of the runtime's stream had announced, nor did within 5 s: each makes relists due every second."),
		events:   map[lifecyclev1.EventType]prometheus.Counter{},
		registry: registry,
	}
	for number := range lifecyclev1.EventType_name {
		if kind := lifecyclev1.EventType(number); kind != lifecyclev1.EventType_EVENT_TYPE_UNSPECIFIED {
			m.events[kind] = prometheus.NewCounter(prometheus.CounterOpts{
				Name: "quartet_pleg_events_total", Help: "Lifecycle events published, by type.",
				ConstLabels: prometheus.Labels{"type": nameOf(kind)},
			})
			registry.MustRegister(m.events[kind])
		}
	}
	registry.MustRegister(m.relistDuration, m.relistInterval, m.inspectionDuration, m.latency, m.lastSeen, m.relistErrors, m.inspectionErrors, m.unannounced)
	return m
}

// expose registers what is looked up in the record when somebody asks.
func (m *Metrics) expose(r *Relister) {
	gauge := func(name, help string, value func() int) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			r.mu.Lock()
			defer r.mu.Unlock()
			return float64(value())
		}))
	}
	gauge("quartet_pleg_pods", "Pods on record.", func() int { return len(r.pods) })
	gauge("quartet_pleg_inspections_waiting", "Pods whose next inspection has been asked for and has not begun.", func() int {
		return r.count(func(p *pod) bool { return p.next != nil })
	})
	gauge("quartet_pleg_inspections_running", "Inspections under way, those that take long included.", func() int {
		return r.count(func(p *pod) bool { return p.running != nil })
	})
	gauge("quartet_pleg_pods_uninspected", "Pods whose state is not known: their last inspection failed, or takes more than 5 s.", func() int {
		return r.count(func(p *pod) bool { return p.failure != "" || p.record.Status.GetInspectError() != "" })
	})
	gauge("quartet_pleg_evented", "1 while the runtime's events say what to look at, 0 while everything is listed every second.", func() int {
		if r.events.Relied() {
			return 1
		}
		return 0
	})
}

// count counts pods. Called with mu held.
func (r *Relister) count(which func(*pod) bool) int {
	n := 0
	for _, p := range r.pods {
		if which(p) {
			n++
		}
	}
	return n
}

// relisted counts a full relist that began at a time.
func (m *Metrics) relisted(took time.Duration, err error) {
	m.relistDuration.Observe(took.Seconds())
	if err != nil {
		m.relistErrors.Inc()
	}
}

// inspected counts the inspection of one pod.
func (m *Metrics) inspected(took time.Duration, err error) {
	m.inspectionDuration.Observe(took.Seconds())
	if err != nil {
		m.inspectionErrors.Inc()
	}
}

// seen notes when the last full relist that worked began.
func (m *Metrics) seen(began time.Time) { m.lastSeen.Set(float64(began.Unix())) }

// published counts the event of a change, and how long after the runtime's own time of it, where it has one, it is published. That of
// a sandbox is from before its network is set up, and no measure.
func (m *Metrics) published(change record.Change, now time.Time) {
	if counter, known := m.events[change.Type]; known {
		counter.Inc()
	}
	if change.Container != nil && !change.OccurredAt.IsZero() {
		m.latency.Observe(now.Sub(change.OccurredAt).Seconds())
	}
}
