package apievents

import "github.com/prometheus/client_golang/prometheus"

// Why an event is not sent.
const (
	dropFull    = "queue_full"
	dropOld     = "expired"
	dropRefused = "refused"
)

// Metrics counts what becomes of events on their way to an API server.
type Metrics struct {
	registerer prometheus.Registerer
	sent       prometheus.Counter
	dropped    map[string]prometheus.Counter
}

// NewMetrics makes the metrics, and registers them with a registry; with nobody when that is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	dropped := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "quartet_events_dropped_total",
		Help: "Events that the API server was never told: too many waited, it took longer than an hour, or it refuses them.",
	}, []string{"reason"})
	m := &Metrics{registerer: r, dropped: map[string]prometheus.Counter{}, sent: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "quartet_events_sent_total", Help: "Events that the API server has been told, repeated ones each time.",
	})}
	for _, reason := range []string{dropFull, dropOld, dropRefused} {
		m.dropped[reason] = dropped.WithLabelValues(reason)
	}
	if r != nil {
		r.MustRegister(m.sent, dropped)
	}
	return m
}

// of has the events counted that wait at a sender.
func (m *Metrics) of(s *Sender) {
	if m.registerer != nil {
		m.registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "quartet_events_waiting", Help: "Events that the API server has not been told yet.",
		}, func() float64 { return float64(s.Waiting()) }))
	}
}

func (m *Metrics) drop(reason string) { m.dropped[reason].Inc() }
