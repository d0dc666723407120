package apievents

import "github.com/prometheus/client_golang/prometheus"

// Reasons for dropping an event.
const (
	dropFull    = "queue_full"
	dropOld     = "expired"
	dropRefused = "refused"
)

// Metrics counts sent, dropped and waiting events.
type Metrics struct {
	registerer prometheus.Registerer
	sent       prometheus.Counter
	dropped    map[string]prometheus.Counter
}

// NewMetrics creates the metrics and registers them, unless the registry is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	dropped := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "quartet_events_dropped_total",
		Help: "Events dropped before they reached the API server, because too many waited, they waited for longer than an hour, or it refused them.",
	}, []string{"reason"})
	m := &Metrics{
		registerer: r,
		dropped:    map[string]prometheus.Counter{},
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quartet_events_sent_total", Help: "Events sent to the API server, including each repetition.",
		}),
	}
	for _, reason := range []string{dropFull, dropOld, dropRefused} {
		m.dropped[reason] = dropped.WithLabelValues(reason)
	}
	if r != nil {
		r.MustRegister(m.sent, dropped)
	}
	return m
}

// watchQueue adds the number of events that wait at a sender.
func (m *Metrics) watchQueue(s *Sender) {
	if m.registerer != nil {
		m.registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "quartet_events_waiting", Help: "Events that wait to be sent to the API server.",
		}, func() float64 { return float64(s.Waiting()) }))
	}
}

func (m *Metrics) drop(reason string) { m.dropped[reason].Inc() }
