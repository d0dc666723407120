package heartbeat

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// Metrics exposes the last Node, and counts heartbeats.
type Metrics struct {
	duration           prometheus.Histogram
	lastBeat, cgroup   prometheus.Gauge
	failedReadings     prometheus.Counter
	condition, healthy *prometheus.GaugeVec
	signals            signalMetrics
}

// signalMetrics are the eviction signals.
type signalMetrics struct{ available, threshold *prometheus.GaugeVec }

// NewMetrics registers the metrics of one Heart.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	vector := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "quartet_nodestatus_heartbeat_duration_seconds",
			Help:    "Time to read the machine and to compute and publish the Node.",
			Buckets: prometheus.ExponentialBuckets(.0005, 4, 8),
		}),
		lastBeat: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_nodestatus_last_heartbeat_timestamp_seconds",
			Help: "Time of the last computed Node, in seconds since 1970; 0 before the first.",
		}),
		cgroup: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_cgroup_version",
			Help: "1 or 2, the version of cgroups that the machine uses; 0 until the machine could be read.",
		}),
		failedReadings: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quartet_nodestatus_reading_errors_total",
			Help: "Heartbeats at which the machine could not be read completely.",
		}),
		condition: vector(
			"quartet_node_condition",
			"1 for the status that a condition of the Node has, 0 for the others.",
			"condition",
			"status",
		),
		healthy: vector("quartet_nodestatus_peer_healthy", "1 while the process reports that it is healthy.", "peer"),
		signals: signalMetrics{
			available: vector(
				"quartet_node_eviction_signal_available",
				"Available amount, in bytes, inodes or processes.",
				"signal",
			),
			threshold: vector(
				"quartet_node_eviction_signal_threshold",
				"Threshold below which the Node has the pressure condition.",
				"signal",
			),
		},
	}
	for _, peer := range []string{peerPLEG, peerSyncLoop} {
		m.healthy.WithLabelValues(peer)
	}
	registry.MustRegister(
		m.duration,
		m.lastBeat,
		m.cgroup,
		m.failedReadings,
		m.condition,
		m.healthy,
		m.signals.available,
		m.signals.threshold,
	)
	return m
}

// The names of the peers.
const (
	peerPLEG     = "pleg"
	peerSyncLoop = "syncloop"
	// partConfigMux is not a peer: syncloop reports the state of configmux.
	partConfigMux = "configmux"
)

// beat records a computed Node.
func (m *Metrics) beat(state nodeobject.State, now time.Time, took time.Duration) {
	m.duration.Observe(took.Seconds())
	m.lastBeat.Set(float64(now.Unix()))
	for _, condition := range state.Node.Status.Conditions {
		for _, status := range []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown} {
			m.condition.WithLabelValues(string(condition.Type), strings.ToLower(string(status))).
				Set(oneIf(condition.Status == status))
		}
	}
	// A signal without a reading is removed, because an old value is misleading.
	m.signals.available.Reset()
	m.signals.threshold.Reset()
	for _, signal := range state.Eviction.Read {
		m.signals.available.WithLabelValues(signal.Name).Set(float64(signal.Available))
		if !signal.Hard {
			continue
		}
		m.signals.threshold.WithLabelValues(signal.Name).Set(float64(signal.Threshold))
	}
}

// peer records the state of a peer.
func (m *Metrics) peer(name string, peer nodeobject.Peer) {
	m.healthy.WithLabelValues(name).Set(oneIf(peer.State == nodeobject.PeerHealthy))
}

func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}
