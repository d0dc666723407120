package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// evictionMetrics count the pods that the node ends to make room, or for a limit of their own.
type evictionMetrics struct {
	evicted, preempted *prometheus.CounterVec
	age                *prometheus.HistogramVec
}

func newEvictionMetrics(f factory) evictionMetrics {
	return evictionMetrics{
		evicted: f.counters(kubelet, "evictions", "Pods ended by the node, by the signal: what it had run short of, or which limit of the disk a pod was above.", "eviction_signal"),
		age: f.histograms(kubelet, "eviction_stats_age_seconds", "How old the reading was that pods were ended for, by signal.",
			prometheus.DefBuckets, "eviction_signal"),
		preempted: f.counters(kubelet, "preemptions", "Pods ended so that a critical one could be let in, by the resource that was missing for it.",
			"preemption_signal"),
	}
}

// EvictedFor notes that a pod is ended for a signal: what the node had run short of, or a limit.
func (m *Metrics) EvictedFor(signal string) { m.room.evicted.WithLabelValues(signal).Inc() }

// EvictionStatsAge notes how old the reading was that pods are ended for.
func (m *Metrics) EvictionStatsAge(signal string, age time.Duration) {
	m.room.age.WithLabelValues(signal).Observe(seconds(age))
}

// Preempted notes that a pod is ended for a critical one, for want of a resource.
func (m *Metrics) Preempted(resource string) { m.room.preempted.WithLabelValues(resource).Inc() }
