package relist

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

// Metrics counts relists, inspections and events, with the kubelet's names and buckets where it has them.
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
			"Duration of a full relist: listing everything, and waiting for the inspection of changed pods."),
		relistInterval: histogram("kubelet_pleg_relist_interval_seconds",
			"Time from the start of the last successful full relist to the start of the next."),
		inspectionDuration: histogram("kubelet_pleg_pod_relist_duration_seconds", "Duration of the inspection of one pod."),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			// The buckets range from milliseconds with events, over a second without, to the period of full relists for a lost
			// event.
			Name:    "quartet_pleg_event_latency_seconds",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
			Help:    "Time from a container's start or end, as the runtime records it, to its event, including time during which this process did not run.",
		}),
		lastSeen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_pleg_last_seen_seconds",
			Help: "Start of the last successful full relist, in seconds since 1970; 0 before the first.",
		}),
		relistErrors:     counter("quartet_pleg_relist_errors_total", "Full relists that failed."),
		inspectionErrors: counter("quartet_pleg_inspection_errors_total", "Inspections of a pod that failed."),
		unannounced: counter(
			"quartet_pleg_unannounced_changes_total",
			"Changes of a pod that an inspection found and that no event of the runtime's stream had announced, nor did within 5 s: each makes relists due every second.",
		),
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
	registry.MustRegister(
		m.relistDuration,
		m.relistInterval,
		m.inspectionDuration,
		m.latency,
		m.lastSeen,
		m.relistErrors,
		m.inspectionErrors,
		m.unannounced,
	)
	return m
}

// expose registers the metrics that are computed when they are gathered.
func (m *Metrics) expose(r *Relister) {
	gauge := func(name, help string, value func() int) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			r.mu.Lock()
			defer r.mu.Unlock()
			return float64(value())
		}))
	}
	gauge("quartet_pleg_pods", "Pods on record.", func() int { return len(r.pods) })
	gauge("quartet_pleg_inspections_waiting", "Pods whose next inspection was requested and has not begun.", func() int {
		return r.count(func(p *pod) bool { return p.next != nil })
	})
	gauge("quartet_pleg_inspections_running", "Running inspections, including slow ones.", func() int {
		return r.count(func(p *pod) bool { return p.running != nil })
	})
	gauge(
		"quartet_pleg_pods_uninspected",
		"Pods whose state is unknown because their last inspection failed, or takes more than 5 s.",
		func() int {
			return r.count(func(p *pod) bool { return p.failure != "" || p.record.Status.GetInspectError() != "" })
		},
	)
	gauge(
		"quartet_pleg_evented",
		"1 while the runtime's events trigger inspections, 0 while everything is listed every second.",
		func() int {
			if r.events.Relied() {
				return 1
			}
			return 0
		},
	)
}

// count counts pods. The caller holds mu.
func (r *Relister) count(matches func(*pod) bool) int {
	n := 0
	for _, p := range r.pods {
		if matches(p) {
			n++
		}
	}
	return n
}

// relisted counts a full relist.
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

// seen records the start of the last successful full relist.
func (m *Metrics) seen(began time.Time) { m.lastSeen.Set(float64(began.Unix())) }

// published counts the event of a change, and its latency relative to the runtime's time, if it has one. The time of a
// sandbox is not used because it precedes the set-up of its network.
func (m *Metrics) published(change record.Change, now time.Time) {
	if counter, known := m.events[change.Type]; known {
		counter.Inc()
	}
	if change.Container != nil && !change.OccurredAt.IsZero() {
		m.latency.Observe(now.Sub(change.OccurredAt).Seconds())
	}
}
