package oom

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts the kills.
type Metrics struct {
	kills *prometheus.CounterVec
}

// NewMetrics registers the metrics of one Run; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{kills: promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "quartet_oom_kills_total", Help: "Processes that the kernel has killed for want of memory, by whose: the system's, or a cgroup's with a limit.",
	}, []string{"scope"})}
	for _, system := range []bool{true, false} {
		m.kills.WithLabelValues(scopeName(system)) // is 0 at first
	}
	return m
}

// killed notes a kill; system is true for one that no cgroup's limit has caused.
func (m *Metrics) killed(system bool) { m.kills.WithLabelValues(scopeName(system)).Inc() }
