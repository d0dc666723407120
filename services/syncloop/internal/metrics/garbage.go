package metrics

import "github.com/prometheus/client_golang/prometheus"

// garbageMetrics count the containers and sandboxes that nobody needs.
type garbageMetrics struct {
	removed *prometheus.CounterVec
	kept    prometheus.Counter
}

func newGarbageMetrics(f factory) garbageMetrics {
	m := garbageMetrics{
		removed: f.counters(quartet, "garbage_removed_total", "Containers and sandboxes removed from the runtime since nobody needs them; not those of pods that are gone.", "kind"),
		kept:    f.counter(quartet, "garbage_removal_errors_total", "Times that a container or sandbox that nobody needs could not be removed."),
	}
	for _, container := range []bool{true, false} {
		m.removed.WithLabelValues(garbageKind(container))
	}
	return m
}

func garbageKind(container bool) string {
	if container {
		return "container"
	}
	return "sandbox"
}

// GarbageRemoved notes that a container, or else a sandbox, was removed since nobody needs it.
func (m *Metrics) GarbageRemoved(container bool) {
	m.garbage.removed.WithLabelValues(garbageKind(container)).Inc()
}

// GarbageKept notes that one could not be removed.
func (m *Metrics) GarbageKept() { m.garbage.kept.Inc() }
