package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Census is what the store counts when it is asked.
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
	LifecycleSync        = "sync"
	LifecycleTerminating = "terminating"
	LifecycleTerminated  = "terminated"

	ConfigDesired     = "desired"
	ConfigOrphan      = "orphan"
	ConfigRuntimeOnly = "runtime_only"
)

// WaitingContainer is a container that waits to be started.
type WaitingContainer struct{ Namespace, Pod, Container, Reason string }

// Workers is what the pool counts when it is asked.
type Workers struct {
	// States counts the workers by the state of their pod.
	States map[string]int
	// Busy, Failing and Pending count the workers that work, those whose last work failed, and those that have been told
	// something that they have not begun with.
	Busy, Failing, Pending int
	// Queued counts the pods that wait for another of their name, or for their own earlier life, to be gone.
	Queued int
}

// Sources is where what is counted at the moment of a scrape is counted.
type Sources struct {
	Pods    func() Census
	Workers func() Workers
	// LastTurn is when the sync loop last turned; zero before the first turn.
	LastTurn func() time.Time
}

// Collect registers what is counted when somebody asks. It panics when that is registered already.
func Collect(registerer prometheus.Registerer, sources Sources) {
	registerer.MustRegister(newCollector(sources))
}

// collector implements prometheus.Collector.
type collector struct {
	sources Sources

	desired, active, working, runningPods, runningContainers, waiting *prometheus.Desc
	workers, busy, failing, pending, queued, lastTurn                 *prometheus.Desc
}

func newCollector(sources Sources) *collector {
	desc := func(prefix, name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+"_"+name, help, labels, nil)
	}
	return &collector{
		sources:     sources,
		desired:     desc(kubelet, "desired_pods", "Pods that a source names. Static is true for those that are not from an API server.", "static"),
		active:      desc(kubelet, "active_pods", "Pods that a source names and that have not ended.", "static"),
		working:     desc(kubelet, "working_pods", "Pods that are worked on, by where they are in their life, whether a source names them, and static.", "lifecycle", "config", "static"),
		runningPods: desc(kubelet, "running_pods", "Pods in the runtime that have a running sandbox."),
		runningContainers: desc(kubelet, "running_containers",
			"Containers in the runtime by state: created, running, exited, unknown.", "container_state"),
		waiting: desc(quartet, "container_waiting",
			"Always 1: a container waits, for the reason of its status. There is no series for a container that does not.", "namespace", "pod", "container", "reason"),
		workers:  desc(quartet, "pod_workers", "Workers by the state of their pod: syncing, terminating, terminated.", "state"),
		busy:     desc(quartet, "pod_workers_busy", "Workers that work at this moment."),
		failing:  desc(quartet, "pod_workers_failing", "Workers whose last work failed."),
		pending:  desc(quartet, "pod_worker_updates_pending", "Updates that a worker has been given and has not begun with. A worker keeps one at most: later ones fold into it."),
		queued:   desc(quartet, "pods_waiting_for_name", "Pods that wait until another pod of their name, or their own earlier life, is gone."),
		lastTurn: desc(quartet, "loop_last_turn_timestamp_seconds", "When the sync loop last turned, as seconds of the Unix epoch; 0 before its first turn."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.desired, c.active, c.working, c.runningPods, c.runningContainers, c.waiting,
		c.workers, c.busy, c.failing, c.pending, c.queued, c.lastTurn,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	c.collectPods(gauge)
	workers := c.sources.Workers()
	for state, n := range workers.States {
		gauge(c.workers, float64(n), state)
	}
	gauge(c.busy, float64(workers.Busy))
	gauge(c.failing, float64(workers.Failing))
	gauge(c.pending, float64(workers.Pending))
	gauge(c.queued, float64(workers.Queued))
	turn := 0.0
	if at := c.sources.LastTurn(); !at.IsZero() {
		turn = float64(at.UnixNano()) / float64(time.Second)
	}
	gauge(c.lastTurn, turn)
}

func (c *collector) collectPods(gauge func(*prometheus.Desc, float64, ...string)) {
	census := c.sources.Pods()
	for _, static := range []bool{false, true} {
		gauge(c.desired, float64(census.Desired[static]), staticLabel(static))
		gauge(c.active, float64(census.Active[static]), staticLabel(static))
	}
	for _, lifecycle := range []string{LifecycleSync, LifecycleTerminating, LifecycleTerminated} {
		for _, config := range []string{ConfigDesired, ConfigOrphan} {
			for _, static := range []bool{false, true} {
				class := Working{Lifecycle: lifecycle, Config: config, Static: static}
				gauge(c.working, float64(census.Working[class]), lifecycle, config, staticLabel(static))
			}
		}
		class := Working{Lifecycle: lifecycle, Config: ConfigRuntimeOnly}
		gauge(c.working, float64(census.Working[class]), lifecycle, ConfigRuntimeOnly, "unknown")
	}
	gauge(c.runningPods, float64(census.RunningPods))
	for _, state := range []string{"created", "running", "exited", "unknown"} {
		gauge(c.runningContainers, float64(census.Containers[state]), state)
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
