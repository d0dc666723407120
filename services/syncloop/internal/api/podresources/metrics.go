package podresources

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// apiVersion is the version of the served API in the metrics.
const apiVersion = "v1"

// call is the name of a call of the API in the metrics.
type call string

// The calls.
const (
	callList           call = "list"
	callGet            call = "get"
	callGetAllocatable call = "get_allocatable"
)

// Metrics counts the requests under the kubelet's names.
type Metrics struct {
	all            prometheus.Counter
	requests, errs map[call]prometheus.Counter
}

// NewMetrics registers the metrics of one server; with a nil registry they are not registered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	counter := func(name, help string) prometheus.Counter {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_pod_resources_endpoint_" + name, Help: help},
			[]string{"server_api_version"}).WithLabelValues(apiVersion)
	}
	m := &Metrics{
		all:      counter("requests_total", "Requests to the pod-resources API."),
		requests: map[call]prometheus.Counter{}, errs: map[call]prometheus.Counter{},
	}
	for _, of := range []call{callList, callGet, callGetAllocatable} {
		m.requests[of] = counter("requests_"+string(of), "Requests to the pod-resources API, those to "+string(of)+".")
		m.errs[of] = counter("errors_"+string(of), "Requests to the pod-resources API to "+string(of)+" that failed.")
	}
	return m
}

// asked counts a request and its error, which is nil if it succeeded.
func (m *Metrics) asked(of call, err error) {
	m.all.Inc()
	m.requests[of].Inc()
	if err != nil {
		m.errs[of].Inc()
	}
}
