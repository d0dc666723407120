package metrics

import "github.com/prometheus/client_golang/prometheus"

// factory makes metrics and registers them, unless there is no registerer.
type factory struct{ registerer prometheus.Registerer }

func (f factory) register(c prometheus.Collector) {
	if f.registerer != nil {
		f.registerer.MustRegister(c)
	}
}

func (f factory) counter(prefix, name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: prefix, Name: name, Help: help})
	f.register(c)
	return c
}

func (f factory) counters(prefix, name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: prefix, Name: name, Help: help}, labels)
	f.register(c)
	return c
}

func (f factory) gauges(prefix, name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: prefix, Name: name, Help: help}, labels)
	f.register(g)
	return g
}

func (f factory) histogram(prefix, name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: prefix, Name: name, Help: help, Buckets: buckets})
	f.register(h)
	return h
}

func (f factory) histograms(prefix, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: prefix, Name: name, Help: help, Buckets: buckets}, labels)
	f.register(h)
	return h
}
