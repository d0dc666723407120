package mux

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// sourceLabel names the source: file, http, api or local.
const sourceLabel = "source"

// kindLabel is the kind of an object in lower case: configmap, secret, persistentvolumeclaim, storageclass or
// csidriver.
const kindLabel = "kind"

// Metrics counts merges and published changes, and reports the state of each source.
type Metrics struct {
	registry prometheus.Registerer
	served   *stream.ServedMetrics
	// servedObjects are the metrics of the stream of objects.
	servedObjects *stream.ServedMetrics
	merges        *prometheus.HistogramVec
	changes       *prometheus.CounterVec
	// objectChanges counts published changes of config maps, secrets and claims.
	objectChanges *prometheus.CounterVec

	objects, pods, errors, ready, readAt *prometheus.Desc

	mu sync.Mutex
	// muxes are those whose sources are reported: one, except in a configmux of a site.
	muxes      map[*Mux]struct{}
	registered bool
}

// NewMetrics creates the metrics of one mux, or of several with the same sources, which are reported together: sums,
// and of times and readiness the worst. They are registered when the first mux is created.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{sourceLabel}, nil)
	}
	return &Metrics{
		muxes:         map[*Mux]struct{}{},
		registry:      registry,
		served:        stream.NewServedMetrics(registry, stream.NamePodUpdates),
		servedObjects: stream.NewServedMetrics(registry, stream.NameObjects),
		merges: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "quartet_configmux_merge_duration_seconds",
			Help:    "Time to compare a reading of a source with the previous one and to publish the difference.",
			Buckets: prometheus.ExponentialBuckets(.0001, 4, 8),
		}, []string{sourceLabel}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_configmux_changes_total", Help: "Changes of desired pods published, by operation.",
		}, []string{sourceLabel, "op"}),
		objectChanges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quartet_configmux_object_changes_total", Help: "Changes of config maps, secrets, claims, storage classes and CSIDrivers published, by operation.",
		}, []string{sourceLabel, kindLabel, "op"}),
		objects: prometheus.NewDesc(
			"quartet_configmux_source_objects",
			"Effective config maps, secrets, claims, storage classes and CSIDrivers of the source.",
			[]string{sourceLabel, kindLabel},
			nil,
		),
		pods:   desc("quartet_configmux_source_pods", "Desired pods of the source."),
		errors: desc("quartet_configmux_source_errors", "Present errors of the source."),
		ready: desc(
			"quartet_configmux_source_ready",
			"1 after the first reading of the source; until then none of its pods is removed from the node.",
		),
		readAt: desc(
			"quartet_configmux_source_last_read_timestamp_seconds",
			"When the source was last read in full, in seconds since 1970; 0 before the first time.",
		),
	}
}

// expose registers the metrics of a mux. All label values exist from the start, so that a rate has its 0.
func (m *Metrics) expose(mux *Mux) {
	m.mu.Lock()
	m.muxes[mux] = struct{}{}
	first := !m.registered
	m.registered = true
	m.mu.Unlock()
	if !first {
		return
	}
	for name := range mux.sources {
		m.merges.WithLabelValues(name)
		for op := podset.Remove; op <= podset.Reconcile; op++ {
			m.changes.WithLabelValues(name, opName(op))
		}
		for _, kind := range apiobject.Kinds() {
			for _, op := range []podset.Op{podset.Add, podset.Update, podset.Remove} {
				m.objectChanges.WithLabelValues(name, kindName(kind), opName(op))
			}
		}
	}
	m.registry.MustRegister(m)
}

// Objects returns the metrics of the stream of objects, for streams of objects that are not those of a mux.
func (m *Metrics) Objects() *stream.ServedMetrics { return m.servedObjects }

// forget removes a mux.
func (m *Metrics) forget(mux *Mux) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.muxes, mux)
}

// opName returns the name of the operation in logs and in the contract, in lower case.
func opName(op podset.Op) string { return strings.ToLower(op.String()) }

// kindName returns a kind in lower case.
func kindName(kind apiobject.Kind) string { return strings.ToLower(string(kind)) }

// merged counts one merge.
func (m *Metrics) merged(source string, took time.Duration, changes []podset.Change) {
	m.merges.WithLabelValues(source).Observe(took.Seconds())
	for _, change := range changes {
		m.changes.WithLabelValues(source, opName(change.Op)).Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.merges.Describe(ch)
	m.changes.Describe(ch)
	m.objectChanges.Describe(ch)
	for _, desc := range []*prometheus.Desc{m.objects, m.pods, m.errors, m.ready, m.readAt} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.merges.Collect(ch)
	m.changes.Collect(ch)
	m.objectChanges.Collect(ch)
	for name, state := range m.states() {
		gauge := func(desc *prometheus.Desc, value float64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, name)
		}
		gauge(m.pods, float64(state.pods))
		for kind, n := range state.objects {
			ch <- prometheus.MustNewConstMetric(m.objects, prometheus.GaugeValue, float64(n), name, kindName(kind))
		}
		gauge(m.errors, float64(state.errors))
		ready, readAt := 0.0, 0.0
		if state.ready {
			ready = 1
		}
		if !state.readAt.IsZero() {
			readAt = float64(state.readAt.Unix())
		}
		gauge(m.ready, ready)
		gauge(m.readAt, readAt)
	}
}

// reported is the state of a source in all muxes.
type reported struct {
	pods, errors int
	objects      map[apiobject.Kind]int
	ready        bool
	readAt       time.Time
}

// states returns the state of each source in all muxes.
func (m *Metrics) states() map[string]*reported {
	m.mu.Lock()
	muxes := slices.Collect(maps.Keys(m.muxes))
	m.mu.Unlock()
	all := map[string]*reported{}
	for _, mux := range muxes {
		mux.addTo(all)
	}
	return all
}

// addTo adds the state of each source to that in other muxes.
func (m *Mux) addTo(all map[string]*reported) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, state := range m.sources {
		sum := all[name]
		if sum == nil {
			sum = &reported{objects: map[apiobject.Kind]int{}, ready: true, readAt: state.readAt}
			all[name] = sum
		}
		sum.pods += len(state.set)
		sum.errors += len(state.errs)
		for kind, n := range m.countKinds(name) {
			sum.objects[kind] += n
		}
		sum.ready = sum.ready && state.ready
		if state.readAt.Before(sum.readAt) {
			sum.readAt = state.readAt
		}
	}
}
