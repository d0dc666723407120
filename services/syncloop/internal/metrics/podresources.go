package metrics

import "github.com/prometheus/client_golang/prometheus"

// podResourcesVersion is the version of the pod-resources API that is served, as its metrics name it.
const podResourcesVersion = "v1"

// PodResourcesCall is a call of the pod-resources API, as its metrics name it.
type PodResourcesCall string

// The calls.
const (
	PodResourcesList           PodResourcesCall = "list"
	PodResourcesGet            PodResourcesCall = "get"
	PodResourcesGetAllocatable PodResourcesCall = "get_allocatable"
)

// podResourcesMetrics is what the kubelet counts of its pod-resources API.
type podResourcesMetrics struct {
	all            prometheus.Counter
	requests, errs map[PodResourcesCall]prometheus.Counter
}

func newPodResourcesMetrics(f factory) podResourcesMetrics {
	counter := func(name, help string) prometheus.Counter {
		return f.counters(kubelet, "pod_resources_endpoint_"+name, help, "server_api_version").WithLabelValues(podResourcesVersion)
	}
	m := podResourcesMetrics{
		all:      counter("requests_total", "Requests to the pod-resources API."),
		requests: map[PodResourcesCall]prometheus.Counter{}, errs: map[PodResourcesCall]prometheus.Counter{},
	}
	for _, call := range []PodResourcesCall{PodResourcesList, PodResourcesGet, PodResourcesGetAllocatable} {
		m.requests[call] = counter("requests_"+string(call), "Requests to the pod-resources API, those to "+string(call)+".")
		m.errs[call] = counter("errors_"+string(call), "Requests to the pod-resources API to "+string(call)+" that failed.")
	}
	return m
}

// PodResourcesAsked notes a request to the pod-resources API, and why it failed; nil when it did not.
func (m *Metrics) PodResourcesAsked(call PodResourcesCall, err error) {
	m.podResources.all.Inc()
	m.podResources.requests[call].Inc()
	if err != nil {
		m.podResources.errs[call].Inc()
	}
}
