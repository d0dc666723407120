package metrics

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
)

// Phase is a part of the start of a pod.
type Phase string

// The phases, in the order in which a pod passes through them. Those from dispatch to sandbox, and observe and ready, are
// counted once for a pod that starts, volumes also before containers that are started later; image, create and start once for each container that does, restarts included.
// Containers of a pod pass through image and create side by side.
const (
	// PhaseDispatch: from the moment configmux saw the pod until the loop hands it to a worker.
	PhaseDispatch Phase = "dispatch"
	// PhaseWait: from there until the worker begins.
	PhaseWait Phase = "wait"
	// PhaseVolumes: until the volumes of a pod that has any are in place.
	PhaseVolumes Phase = "volumes"
	// PhaseSandbox: the making of the sandbox, with its turn at the start gate.
	PhaseSandbox Phase = "sandbox"
	// PhaseImage: until the runtime has the image.
	PhaseImage Phase = "image"
	// PhaseCreate and PhaseStart: the container, the latter with its postStart hook.
	PhaseCreate Phase = "create"
	PhaseStart  Phase = "start"
	// PhaseObserve: from the runtime's start of the pod's last container until pleg began the inspection that shows it.
	PhaseObserve Phase = "observe"
	// PhaseReady: from there until the status says that the pod is ready.
	PhaseReady Phase = "ready"
)

func (m *Metrics) addStarts(f factory) {
	m.phases = f.histograms(quartet, "pod_start_phase_duration_seconds",
		"Parts of the start of pods: dispatch, wait, volumes, sandbox, image, create, start, observe, ready. Failed ones are not counted.",
		phaseBuckets, "phase")
	for _, phase := range []Phase{PhaseDispatch, PhaseWait, PhaseVolumes, PhaseSandbox, PhaseImage, PhaseCreate, PhaseStart, PhaseObserve, PhaseReady} {
		m.phases.WithLabelValues(string(phase))
	}
	m.podReady = f.histogram(quartet, "pod_start_duration_seconds",
		"Time from the moment configmux first saw a pod until its status says that it is ready.", phaseBuckets)
	m.podStart = f.histogram(kubelet, "pod_start_duration_seconds",
		"Time from the moment a pod is first seen until its phase is Running.", podStartBuckets)
	m.podStartTotal = f.histogram(kubelet, "pod_start_total_duration_seconds",
		"Time from the creation of a pod until its status shows that all its containers run, with pulls and init containers.", podStartBuckets)
	m.podStartSLI = f.histogram(kubelet, "pod_start_sli_duration_seconds",
		"As kubelet_pod_start_total_duration_seconds, less the time of image pulls and init containers, of pods without persistent volumes.", podStartBuckets)
}

// Passed notes that a phase of a start went well.
func (m *Metrics) Passed(phase Phase, took time.Duration) {
	m.phases.WithLabelValues(string(phase)).Observe(seconds(took))
}

// WorkerStarted notes that a worker begins to start a new pod.
func (m *Metrics) WorkerStarted(sinceSeen, sinceDispatch time.Duration) {
	m.workerStart.Observe(seconds(sinceSeen))
	m.Passed(PhaseWait, sinceDispatch)
}

// PodRunning notes that the phase of a new pod has become Running, for the first time.
func (m *Metrics) PodRunning(sinceSeen time.Duration) { m.podStart.Observe(seconds(sinceSeen)) }

// PodReady notes that a new pod is ready, for the first time.
func (m *Metrics) PodReady(sinceSeen, observe, ready time.Duration) {
	m.podReady.Observe(seconds(sinceSeen))
	m.Passed(PhaseObserve, observe)
	m.Passed(PhaseReady, ready)
}

// PodStarted notes that all containers of a new pod run, for the first time. Pod has its status.
func (m *Metrics) PodStarted(pod *v1.Pod, now time.Time) {
	created := pod.CreationTimestamp.Time
	if created.IsZero() {
		created = Seen(pod)
	}
	if created.IsZero() {
		return
	}
	took, pulls := now.Sub(created), m.pulls.take(pod.UID)
	m.podStartTotal.Observe(seconds(took))
	if !isStateful(pod) {
		m.podStartSLI.Observe(seconds(took - pulls - initRuntime(&pod.Status)))
	}
}

// PodGone drops what is kept for a pod.
func (m *Metrics) PodGone(uid types.UID) { m.pulls.take(uid) }

// Seen returns when configmux first saw a pod; zero when the pod does not say.
func Seen(pod *v1.Pod) time.Time {
	seen, err := time.Parse(time.RFC3339Nano, pod.Annotations[podset.AnnotationSeen])
	if err != nil {
		return time.Time{} // the annotation is configmux's own; without it the pod is not timed
	}
	return seen
}

// isStateful tells whether a pod is left out of the startup objective: it mounts what outlives it. The definition is that
// of Kubernetes' pod startup latency SLI.
func isStateful(pod *v1.Pod) bool {
	for _, v := range pod.Spec.Volumes {
		if v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil {
			return true
		}
	}
	return false
}

// initRuntime is how long the init containers ran that have ended well.
func initRuntime(status *v1.PodStatus) time.Duration {
	var sum time.Duration
	for _, c := range status.InitContainerStatuses {
		if ended := c.State.Terminated; ended != nil {
			sum += ended.FinishedAt.Sub(ended.StartedAt.Time)
		}
	}
	return sum
}

// pullLog has, for pods that have not started yet, how long images were pulled for them. Pulls that run side by side
// count once.
type pullLog struct {
	mu   sync.Mutex
	pods map[types.UID]*pulling
}

// pulling is the pulls of one pod.
type pulling struct {
	running int
	since   time.Time
	total   time.Duration
}

func (l *pullLog) begin(uid types.UID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pods[uid]
	if p == nil {
		p = &pulling{}
		l.pods[uid] = p
	}
	if p.running++; p.running == 1 {
		p.since = now
	}
}

func (l *pullLog) end(uid types.UID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pods[uid]
	if p == nil {
		return // the pod is gone
	}
	if p.running--; p.running == 0 {
		p.total += now.Sub(p.since)
	}
}

// take returns the time of the pulls that have ended, and forgets the pod.
func (l *pullLog) take(uid types.UID) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pods[uid]
	delete(l.pods, uid)
	if p == nil {
		return 0
	}
	return p.total
}
