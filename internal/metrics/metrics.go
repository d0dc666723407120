// Package metrics is how each of the four processes makes and serves its Prometheus metrics: a registry of its own, with
// what every process has (Go, process, build), and an HTTP server on a unix socket or the loopback interface.
//
// There is no global registry. A service makes a [Metrics] in its run function and hands the registry to the parts
// that count, each of which registers a struct of its own. docs/reference/metrics.md lists every metric, and the run test of each
// service compares what the service exposes with that list, see package metricstest.
package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// Metrics is what a process counts in.
type Metrics struct {
	// Registry has every metric of the process.
	Registry *prometheus.Registry
}

// New returns a registry with what every process has: go_* and process_*, with the names that client_golang gives them
// everywhere, and quartet_build_info.
func New(service nodeconfig.Service) *Metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(service),
	)
	return &Metrics{Registry: registry}
}

// buildInfo is 1, with what was built in its labels, so that a query can join it to any other metric of the process.
func buildInfo(service nodeconfig.Service) prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "quartet_build_info",
		Help: "Always 1. The labels say which service this is and what it was built from.",
		ConstLabels: prometheus.Labels{
			"service": string(service), "version": buildinfo.Version(), "kubernetes_version": buildinfo.Kubernetes(), "go_version": runtime.Version(),
		},
	})
	info.Set(1)
	return info
}
