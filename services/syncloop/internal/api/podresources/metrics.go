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
	for _, method := range []call{callList, callGet, callGetAllocatable} {
		m.requests[method] = counter("requests_"+string(method), "Requests to the pod-resources API, those to "+string(method)+".")
		m.errs[method] = counter("errors_"+string(method), "Requests to the pod-resources API to "+string(method)+" that failed.")
	}
	return m
}

// count counts a request and its error, which is nil if it succeeded.
func (m *Metrics) count(method call, err error) {
	m.all.Inc()
	m.requests[method].Inc()
	if err != nil {
		m.errs[method].Inc()
	}
}
