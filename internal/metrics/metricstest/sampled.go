package metricstest

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Sampled returns a Registerer that registers with another and gives each vector a sample, with empty labels. A vector
// without a sample is not exposed, so without this a test cannot see that it is registered.
func Sampled(next prometheus.Registerer) prometheus.Registerer { return sampled{next} }

type sampled struct{ prometheus.Registerer }

// Register implements prometheus.Registerer.
func (s sampled) Register(c prometheus.Collector) error {
	if err := s.Registerer.Register(c); err != nil {
		return err
	}
	return sample(c)
}

// MustRegister implements prometheus.Registerer.
func (s sampled) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := s.Register(c); err != nil {
			panic(err)
		}
	}
}

// maxLabels is how many labels a vector may have.
const maxLabels = 16

// sample makes a sample of a vector. A vector does not say how many labels it has, and so the number is tried.
func sample(c prometheus.Collector) error {
	var err error
	for n := range maxLabels {
		values := make([]string, n)
		switch vector := c.(type) {
		case *prometheus.CounterVec:
			_, err = vector.GetMetricWithLabelValues(values...)
		case *prometheus.GaugeVec:
			_, err = vector.GetMetricWithLabelValues(values...)
		case *prometheus.HistogramVec:
			_, err = vector.GetMetricWithLabelValues(values...)
		case *prometheus.SummaryVec:
			_, err = vector.GetMetricWithLabelValues(values...)
		}
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("make a sample of %T: %w", c, err)
}
