package phases

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Phase is a part of the start of a pod.
type Phase string

// The phases, in the order in which a pod passes through them. Those from dispatch to sandbox, and observe and ready,
// are counted once for a pod that starts, volumes also before containers that are started later; image, create and
// start once for each container that does, restarts included. Containers of a pod pass through image and create side by
// side.
const (
	// Dispatch: from the moment configmux saw the pod until the loop hands it to a worker.
	Dispatch Phase = "dispatch"
	// Wait: from there until the worker begins.
	Wait Phase = "wait"
	// Volumes: until the volumes of a pod that has any are in place.
	Volumes Phase = "volumes"
	// Sandbox: the making of the sandbox, with its turn at the start gate.
	Sandbox Phase = "sandbox"
	// Image: until the runtime has the image.
	Image Phase = "image"
	// Create and Start: the container, the latter with its postStart hook.
	Create Phase = "create"
	Start  Phase = "start"
	// Observe: from the runtime's start of the pod's last container until pleg began the inspection that shows it.
	Observe Phase = "observe"
	// Ready: from there until the status says that the pod is ready.
	Ready Phase = "ready"
)

// Buckets returns the buckets of what is a part of the start of a pod, in seconds: they have a resolution of two from
// one millisecond to half a minute, because a pod alone on a machine takes 0.2 s, and the slowest of a hundred 20 s.
func Buckets() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 16) }

// Metrics times the phases of all pods together.
type Metrics struct {
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics of one Book; a nil registry takes none.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{duration: promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
		Name: "quartet_pod_start_phase_duration_seconds", Buckets: Buckets(),
		Help: "Parts of the start of pods: dispatch, wait, volumes, sandbox, image, create, start, observe, ready. Failed ones are not counted.",
	}, []string{"phase"})}
	for _, phase := range []Phase{Dispatch, Wait, Volumes, Sandbox, Image, Create, Start, Observe, Ready} {
		m.duration.WithLabelValues(string(phase))
	}
	return m
}

// passed notes a phase that succeeded.
func (m *Metrics) passed(phase Phase, took time.Duration) {
	m.duration.WithLabelValues(string(phase)).Observe(took.Seconds())
}
