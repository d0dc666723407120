// Package metrics is what syncloop counts and times. Names, labels and buckets are the kubelet's where a kubelet has the
// same figure, so that dashboards and alerts made for kubelets work; the others begin with quartet_. docs/reference/metrics.md lists
// all of them and says where they differ from the kubelet's.
//
// [Metrics] has what is counted as it happens; the loop, the workers, executor and the store tell it. [Collect] adds what
// is counted when somebody asks: pods, containers and workers as they are at that moment.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

const (
	kubelet = "kubelet"
	quartet = "quartet"
)

// Metrics is what is counted as it happens. Make it with New; its methods may be called from any goroutine.
type Metrics struct {
	workerDuration, phases, turns, sandboxDuration, imagePulls     *prometheus.HistogramVec
	cgroups                                                        *prometheus.HistogramVec
	workerStart, podStart, podStartTotal, podStartSLI, podReady    prometheus.Histogram
	gateWait                                                       prometheus.Histogram
	retries, restarted, refused, sandboxErrors                     *prometheus.CounterVec
	startedContainers, startedContainerErrors, containerEnds       *prometheus.CounterVec
	orphans, startedPods, startedPodErrors, evictions, imageErrors prometheus.Counter
	http                                                           httpMetrics
	logs                                                           logMetrics
	garbage                                                        garbageMetrics
	collection                                                     imageMetrics
	credentials                                                    credentialMetrics
	probes                                                         probeMetrics
	volumes                                                        volumeMetrics
	status                                                         statusMetrics
	room                                                           evictionMetrics
	podResources                                                   podResourcesMetrics

	pulls pullLog

	userPods, userPodErrors prometheus.Counter
}

// New makes the metrics and registers them. A nil registerer leaves them for nobody to read, as tests of something else
// want it. It panics when they are registered already.
func New(registerer prometheus.Registerer) *Metrics {
	f := factory{registerer}
	m := &Metrics{http: newHTTPMetrics(f), collection: newImageMetrics(f), credentials: newCredentialMetrics(f), probes: newProbeMetrics(), pulls: pullLog{pods: map[types.UID]*pulling{}}}
	m.addLoop(f)
	m.addStarts(f)
	m.addRuntime(f)
	m.logs, m.garbage, m.volumes = newLogMetrics(f), newGarbageMetrics(f), newVolumeMetrics(f)
	m.status = newStatusMetrics(f)
	m.addCgroups(f)
	m.room, m.podResources = newEvictionMetrics(f), newPodResourcesMetrics(f)
	return m
}

// OrDiscard returns m, or metrics that nobody reads when it is nil.
func OrDiscard(m *Metrics) *Metrics {
	if m == nil {
		return New(nil)
	}
	return m
}

// Event names what the sync loop has turned for.
type Event string

// The events of the sync loop, one for each of its channels.
const (
	EventConfig       Event = "config"
	EventLifecycle    Event = "lifecycle"
	EventProbe        Event = "probe"
	EventGate         Event = "gate"
	EventNode         Event = "node"
	EventLeftovers    Event = "leftovers"
	EventDue          Event = "due"
	EventHousekeeping Event = "housekeeping"
)

// Operation names a piece of a worker's work, as the kubelet does.
type Operation string

// The pieces of work: the first sync of a worker, one because what is wanted has changed, any other, the stopping of a
// pod, and the removal of what it left.
const (
	OperationCreate     Operation = "create"
	OperationUpdate     Operation = "update"
	OperationSync       Operation = "sync"
	OperationKill       Operation = "kill"
	OperationTerminated Operation = "terminated"
)

// Failure is what a piece of work has failed of.
type Failure string

// The failures.
const (
	// FailedAway: pleg or the runtime is not there.
	FailedAway Failure = "away"
	// FailedInspect: pleg cannot inspect the pod.
	FailedInspect Failure = "inspect"
	// FailedNetwork: the network of pods is not ready.
	FailedNetwork Failure = "network"
	// FailedUnsupported: the pod asks for something that this version does not have.
	FailedUnsupported Failure = "unsupported"
	// FailedVolume: a volume cannot be set up or removed.
	FailedVolume Failure = "volume"
	// FailedImage: an image cannot be had.
	FailedImage Failure = "image"
	// FailedRuntime: the runtime has refused a call.
	FailedRuntime Failure = "runtime"
	// FailedOther: anything else, said in the log.
	FailedOther Failure = "other"
)

func (m *Metrics) addLoop(f factory) {
	m.turns = f.histograms(quartet, "loop_turn_duration_seconds",
		"How long the sync loop took to handle one event, by the kind of event. The count is the number of events.", turnBuckets, "event")
	for _, event := range []Event{EventConfig, EventLifecycle, EventGate, EventNode, EventLeftovers, EventDue, EventHousekeeping} {
		m.turns.WithLabelValues(string(event))
	}
	m.workerDuration = f.histograms(kubelet, "pod_worker_duration_seconds",
		"Time from the moment a worker is given something to do until that is done, by operation: create, update, sync, kill, terminated.",
		prometheus.DefBuckets, "operation_type")
	m.workerStart = f.histogram(kubelet, "pod_worker_start_duration_seconds",
		"Time from the moment a new pod is first seen until its worker begins to start it.", prometheus.DefBuckets)
	m.retries = f.counters(quartet, "pod_worker_retries_total",
		"Pieces of a worker's work that failed and are tried again after a pause, by what they failed of.", "reason")
	m.restarted = f.counters(kubelet, "restarted_pods_total",
		"Pods that came back with the UID of a pod that was still ending, and were started again after it.", "static")
	// What is there from the beginning shows its first increase.
	for _, reason := range []Failure{FailedAway, FailedInspect, FailedNetwork, FailedUnsupported, FailedVolume, FailedImage, FailedRuntime, FailedOther} {
		m.retries.WithLabelValues(string(reason))
	}
	for _, static := range []bool{false, true} {
		m.restarted.WithLabelValues(staticLabel(static))
	}
	m.orphans = f.counter(kubelet, "orphaned_runtime_pods_total",
		"Pods that were found running, that no source names and that no worker knew.")
	m.refused = f.counters(kubelet, "admission_rejections_total", "Pods that were not let in, by the reason in their status.", "reason")
	m.evictions = f.counter(quartet, "pod_evictions_total", "Pods that were ended through EvictPod.")
}

// Turned notes that the loop has handled an event.
func (m *Metrics) Turned(event Event, took time.Duration) {
	m.turns.WithLabelValues(string(event)).Observe(seconds(took))
}

// Worked notes that a piece of work has ended, well or not, that was asked for that long ago.
func (m *Metrics) Worked(operation Operation, took time.Duration) {
	m.workerDuration.WithLabelValues(string(operation)).Observe(seconds(took))
}

// Retried notes that a piece of work has failed and is tried again.
func (m *Metrics) Retried(reason Failure) { m.retries.WithLabelValues(string(reason)).Inc() }

// Restarted notes that a pod that has come back while it was ending is started again.
func (m *Metrics) Restarted(static bool) { m.restarted.WithLabelValues(staticLabel(static)).Inc() }

// OrphanFound notes that something runs that nobody wants.
func (m *Metrics) OrphanFound() { m.orphans.Inc() }

// Refused notes that a pod is not let in.
func (m *Metrics) Refused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Evicted notes that a pod is ended for good.
func (m *Metrics) Evicted() { m.evictions.Inc() }

// IsStatic tells whether a source gives static pods: all do but an API server.
func IsStatic(source string) bool { return source != "api" }

// staticLabel is how the kubelet says whether a pod is static.
func staticLabel(static bool) string {
	if static {
		return "true"
	}
	return ""
}

// seconds makes a duration a sample. One that is negative, as when the wall clock was set back, counts as none.
func seconds(d time.Duration) float64 { return max(d, 0).Seconds() }

var (
	// turnBuckets reach from what the loop takes for an event that matters to nobody to a turn that holds up the node.
	turnBuckets = prometheus.ExponentialBuckets(0.00001, 4, 10)
	// phaseBuckets have a resolution of two from one millisecond to half a minute: a pod alone on a machine takes 0.2 s, and
	// the slowest of a hundred 20 s.
	phaseBuckets = prometheus.ExponentialBuckets(0.001, 2, 16)
	// podStartBuckets and imagePullBuckets are the kubelet's.
	podStartBuckets  = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	imagePullBuckets = []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
)
