// Package metrics creates and serves the Prometheus metrics of the four processes. Each has its own registry with the
// metrics that every process has (Go, process, build), and an HTTP server on a unix socket or the loopback interface.
//
// There is no global registry. A service creates a [Metrics] in its run function and passes the registry to its
// components, each of which registers a struct of its own. docs/reference/metrics.md lists every metric, and the run
// test of each service compares the service's metrics with that list, see package metricstest.
package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// Metrics is the registry of a process.
type Metrics struct {
	// Registry has every metric of the process.
	Registry *prometheus.Registry
}

// New returns a registry with the metrics of every process: go_* and process_*, as client_golang names them, and
// quartet_build_info.
func New(service nodeconfig.Service) *Metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(service),
	)
	return &Metrics{Registry: registry}
}

// buildInfo is 1, with the build's versions as labels, so that a query can join it to any other metric of the process.
func buildInfo(service nodeconfig.Service) prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "quartet_build_info",
		Help: "Always 1. The labels have the service and the versions that it was built from.",
		ConstLabels: prometheus.Labels{
			"service":            string(service),
			"version":            buildinfo.Version(),
			"kubernetes_version": buildinfo.Kubernetes(),
			"go_version":         runtime.Version(),
		},
	})
	info.Set(1)
	return info
}
