package selinux

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts labels of volumes, and what goes wrong with them.
type Metrics struct {
	containers, pods, volumes problem
	admitted                  *prometheus.GaugeVec
}

// problem counts an error: one that a pod waits for, or one that does not matter yet.
type problem struct{ errors, warnings *prometheus.GaugeVec }

// count counts an error, and returns it if the pod must wait for it.
func (p problem) count(matters bool, err error, labels ...string) error {
	if matters {
		p.errors.WithLabelValues(labels...).Add(1)
		return err
	}
	p.warnings.WithLabelValues(labels...).Add(1)
	return nil
}

// NewMetrics returns the metrics in a registry; nil registers none. They are gauges, as the kubelet's are.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return promauto.With(registry).NewGaugeVec(prometheus.GaugeOpts{
			Name: "volume_manager_selinux_" + name, Help: help,
		}, labels)
	}
	const mode, plugin = "access_mode", "volume_plugin"
	return &Metrics{
		containers: problem{
			gauge("container_errors_total", "Containers whose SELinux label is invalid; the pod waits.", mode),
			gauge("container_warnings_total", "Containers whose SELinux label is invalid and not used.", mode),
		},
		pods: problem{
			gauge("pod_context_mismatch_errors_total",
				"Volumes that containers of one pod use with different SELinux labels; the pod waits.", mode),
			gauge("pod_context_mismatch_warnings_total",
				"Volumes that containers of one pod use with different SELinux labels, which are not used.", mode),
		},
		volumes: problem{
			gauge("volume_context_mismatch_errors_total",
				"Volumes that pods use with different SELinux labels; the second pod waits.", plugin, mode),
			gauge("volume_context_mismatch_warnings_total",
				"Volumes that pods use with different SELinux labels, which are not used.", plugin, mode),
		},
		admitted: gauge("volumes_admitted_total", "Volumes that are mounted with an SELinux label.", plugin, mode),
	}
}
