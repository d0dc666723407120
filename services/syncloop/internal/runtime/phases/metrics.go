package phases

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Phase is a part of the start of a pod.
type Phase string

// The phases in the order in which a pod passes through them. The phases from dispatch to sandbox, observe and ready
// are counted once for each start of a pod; volumes also for containers that are started later. Image, create and start
// are counted once for each start of a container, including restarts. Containers of a pod pass through image and create
// concurrently.
const (
	// Dispatch lasts from the moment when configmux sees the pod until the loop hands it to a worker.
	Dispatch Phase = "dispatch"
	// Wait lasts until the worker begins.
	Wait Phase = "wait"
	// Volumes lasts until the volumes of a pod are ready. Pods without volumes have no such phase.
	Volumes Phase = "volumes"
	// Sandbox is the creation of the sandbox, including the wait at the start gate.
	Sandbox Phase = "sandbox"
	// Image lasts until the runtime has the image.
	Image Phase = "image"
	// Create is the creation of the container. Start is its start and its postStart hook.
	Create Phase = "create"
	Start  Phase = "start"
	// Observe lasts from the runtime's start of the pod's last container until pleg begins the inspection that shows it.
	Observe Phase = "observe"
	// Ready lasts until the status reports the pod as ready.
	Ready Phase = "ready"
)

// Buckets returns the buckets of the phases in seconds. Each is twice the previous one, from one millisecond to half a
// minute, because a single pod on a machine takes 0.2 s, and the slowest of a hundred takes 20 s.
func Buckets() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 16) }

// Metrics times the phases of all pods.
type Metrics struct {
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics of a Book; a nil registry registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{duration: promauto.With(registry).NewHistogramVec(prometheus.HistogramOpts{
		Name: "quartet_pod_start_phase_duration_seconds", Buckets: Buckets(),
		Help: "Duration of the phases of pod starts: dispatch, wait, volumes, sandbox, image, create, start, observe, ready. Failed phases are not counted.",
	}, []string{"phase"})}
	for _, phase := range []Phase{Dispatch, Wait, Volumes, Sandbox, Image, Create, Start, Observe, Ready} {
		m.duration.WithLabelValues(string(phase))
	}
	return m
}

// passed records a successful phase.
func (m *Metrics) passed(phase Phase, took time.Duration) {
	m.duration.WithLabelValues(string(phase)).Observe(took.Seconds())
}
