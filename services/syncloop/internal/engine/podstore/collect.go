package podstore

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// Census is what the Store counts at each scrape.
type Census struct {
	// Desired and Active count the pods that a source names, and those of them that have not ended, by whether they are
	// static.
	Desired, Active map[bool]int
	// Working counts the pods that are worked on.
	Working map[Working]int
	// RunningPods counts the pods in the runtime with a sandbox that is ready, orphans included.
	RunningPods int
	// Containers counts the containers in the runtime by state: created, running, exited, unknown.
	Containers map[string]int
	// Waiting has the containers that wait, with the reason that their status shows.
	Waiting []WaitingContainer
}

// Working is a class of pods that are worked on, in the kubelet's words.
type Working struct {
	// Lifecycle is sync, terminating or terminated.
	Lifecycle string
	// Config is desired, orphan for a pod that no source names any more, or runtime_only for one that only the runtime
	// knows.
	Config string
	// Static is whether the pod is static; that of a pod that only the runtime knows is unknown.
	Static bool
}

// The words of Working.
const (
	lifecycleSync        = "sync"
	lifecycleTerminating = "terminating"
	lifecycleTerminated  = "terminated"

	configDesired     = "desired"
	configOrphan      = "orphan"
	configRuntimeOnly = "runtime_only"
)

// WaitingContainer is a container that waits to be started.
type WaitingContainer struct{ Namespace, Pod, Container, Reason string }

// Expose registers what census counts at each scrape. New calls it.
func (m *Metrics) Expose(census func() Census) {
	if m.registry != nil {
		m.registry.MustRegister(newCollector(census))
	}
}

// collector implements prometheus.Collector.
type collector struct {
	census func() Census

	desired, active, working, runningPods, runningContainers, waiting *prometheus.Desc
}

func newCollector(census func() Census) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		census:  census,
		desired: desc("kubelet_desired_pods", "Pods that a source names. Static is true for those that are not from an API server.", "static"),
		active:  desc("kubelet_active_pods", "Pods that a source names and that have not ended.", "static"),
		working: desc("kubelet_working_pods",
			"Pods that are worked on, by where they are in their life, whether a source names them, and static.", "lifecycle", "config", "static"),
		runningPods: desc("kubelet_running_pods", "Pods in the runtime that have a running sandbox."),
		runningContainers: desc("kubelet_running_containers",
			"Containers in the runtime by state: created, running, exited, unknown.", "container_state"),
		waiting: desc("quartet_container_waiting",
			"Always 1: a container waits, for the reason of its status. There is no series for a container that does not.",
			"namespace", "pod", "container", "reason"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.desired, c.active, c.working, c.runningPods, c.runningContainers, c.waiting} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	census := c.census()
	for _, static := range []bool{false, true} {
		gauge(c.desired, census.Desired[static], podworkers.StaticLabel(static))
		gauge(c.active, census.Active[static], podworkers.StaticLabel(static))
	}
	for _, lifecycle := range []string{lifecycleSync, lifecycleTerminating, lifecycleTerminated} {
		for _, config := range []string{configDesired, configOrphan} {
			for _, static := range []bool{false, true} {
				class := Working{Lifecycle: lifecycle, Config: config, Static: static}
				gauge(c.working, census.Working[class], lifecycle, config, podworkers.StaticLabel(static))
			}
		}
		class := Working{Lifecycle: lifecycle, Config: configRuntimeOnly}
		gauge(c.working, census.Working[class], lifecycle, configRuntimeOnly, "unknown")
	}
	gauge(c.runningPods, census.RunningPods)
	for _, state := range []string{"created", "running", "exited", "unknown"} {
		gauge(c.runningContainers, census.Containers[state], state)
	}
	told := map[WaitingContainer]bool{} // a pod and the one of its name that it waits for are one series
	for _, w := range census.Waiting {
		if told[w] {
			continue
		}
		told[w] = true
		gauge(c.waiting, 1, w.Namespace, w.Pod, w.Container, w.Reason)
	}
}
