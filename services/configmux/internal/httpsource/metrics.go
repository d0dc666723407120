package httpsource

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts the server's responses.
type Metrics struct {
	changed, unchanged, failed prometheus.Counter
}

// NewMetrics registers the metrics of one HTTP source.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	polls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "quartet_configmux_http_polls_total", Help: "Requests to staticPodURL, by result.",
	}, []string{"outcome"})
	registry.MustRegister(polls)
	return &Metrics{
		changed:   polls.WithLabelValues("changed"),
		unchanged: polls.WithLabelValues("unchanged"),
		failed:    polls.WithLabelValues("failed"),
	}
}
