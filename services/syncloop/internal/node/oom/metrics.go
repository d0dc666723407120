package oom

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts the processes that the kernel killed.
type Metrics struct {
	kills *prometheus.CounterVec
}

// NewMetrics registers the metrics of one Run. A nil registry is valid and registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{kills: promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "quartet_oom_kills_total",
		Help: "Processes that the kernel killed because memory ran out, by scope: of the system, or of a cgroup with a limit.",
	}, []string{"scope"})}
	for _, system := range []bool{true, false} {
		m.kills.WithLabelValues(scopeName(system)) // creates the counter with 0
	}
	return m
}

// killed counts a kill. system is false if the limit of a cgroup caused it.
func (m *Metrics) killed(system bool) { m.kills.WithLabelValues(scopeName(system)).Inc() }
