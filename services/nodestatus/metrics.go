package nodestatus

import (
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/buildinfo"
)

// nodeInfo returns the two metrics that identify the node and its version on dashboards of a kubelet. Each is always 1.
// It omits the kubelet's labels about a build of Kubernetes itself: commit, tree state and date.
func nodeInfo(nodeName string) []prometheus.Collector {
	version := buildinfo.Kubernetes()
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	one := func(name, help string, labels prometheus.Labels) prometheus.Collector {
		gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
		gauge.Set(1)
		return gauge
	}
	return []prometheus.Collector{
		one("kubelet_node_name", "Always 1. The label is the node's name.", prometheus.Labels{"node": nodeName}),
		one(
			"kubernetes_build_info",
			"Always 1. The labels are the version of Kubernetes that this node behaves as, and what it was built with.",
			prometheus.Labels{
				"major": major, "minor": minor, "git_version": version,
				"go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
			},
		),
	}
}
