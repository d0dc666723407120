package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// CgroupOperation names what is done to a cgroup, as the kubelet does.
type CgroupOperation string

// What is done to cgroups.
const (
	CgroupCreate  CgroupOperation = "create"
	CgroupUpdate  CgroupOperation = "update"
	CgroupDestroy CgroupOperation = "destroy"
)

func (m *Metrics) addCgroups(f factory) {
	m.cgroups = f.histograms(kubelet, "cgroup_manager_duration_seconds",
		"How long it took to make, change or remove the cgroup of a pod or of pods together, by operation: create, update, destroy.",
		prometheus.DefBuckets, "operation_type")
	for _, operation := range []CgroupOperation{CgroupCreate, CgroupUpdate, CgroupDestroy} {
		m.cgroups.WithLabelValues(string(operation))
	}
}

// CgroupDone notes how long an operation on a cgroup took, whether it went well or not.
func (m *Metrics) CgroupDone(operation CgroupOperation, took time.Duration) {
	m.cgroups.WithLabelValues(string(operation)).Observe(seconds(took))
}
