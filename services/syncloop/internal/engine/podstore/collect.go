package podstore

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// Census has the counts of one scrape.
type Census struct {
	// Desired counts the pods that a source names, and Active those of them that have not ended. The key is true for
	// static pods.
	Desired, Active map[bool]int
	// Working counts the pods that are worked on.
	Working map[Working]int
	// RunningPods counts the pods in the runtime with a sandbox that is ready, orphans included.
	RunningPods int
	// Containers counts the containers in the runtime by state: created, running, exited, unknown.
	Containers map[string]int
	// Waiting has the waiting containers, with the reason in their status.
	Waiting []WaitingContainer
}

// Working is a class of pods that are worked on, in the kubelet's words.
type Working struct {
	// Lifecycle is sync, terminating or terminated.
	Lifecycle string
	// Config is desired, orphan for a pod that no source names any more, or runtime_only for a pod that is only in the
	// runtime.
	Config string
	// Static reports whether the pod is static. For a pod that is only in the runtime it is unknown and the field is
	// false.
	Static bool
}

// The values of the fields of Working.
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

// Expose registers a collector that calls census at each scrape. New calls it.
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
		census: census,
		desired: desc("kubelet_desired_pods",
			"Pods that a source names. Static is true for those that are not from an API server.", "static"),
		active: desc("kubelet_active_pods", "Pods that a source names and that have not ended.", "static"),
		working: desc("kubelet_working_pods",
			"Pods that syncloop handles, by lifecycle, by config (whether a source names them) and by static.",
			"lifecycle", "config", "static"),
		runningPods: desc("kubelet_running_pods", "Pods in the runtime that have a running sandbox."),
		runningContainers: desc("kubelet_running_containers",
			"Containers in the runtime by state: created, running, exited, unknown.", "container_state"),
		waiting: desc("quartet_container_waiting",
			"1 for each waiting container, with the reason in its status.",
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
	// a pod and the terminating pod of the same name that it waits for share one series
	exposed := map[WaitingContainer]bool{}
	for _, w := range census.Waiting {
		if exposed[w] {
			continue
		}
		exposed[w] = true
		gauge(c.waiting, 1, w.Namespace, w.Pod, w.Container, w.Reason)
	}
}
