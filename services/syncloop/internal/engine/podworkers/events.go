package podworkers

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/cri"
)

// Reasons of events, as the kubelet has them.
const (
	eventFailedSync    = "FailedSync"
	eventFailedKill    = "FailedKillPod"
	eventExceededGrace = "ExceededGracePeriod"
	eventResized       = "ResizeCompleted"
	eventResizeError   = "ResizeError"
)

// Events is told what was done for pods, and what cannot be; *podevents.Recorder keeps it.
type Events interface {
	// Normal and Warning tell something of a container of a pod, of the pod as a whole when container is empty: a reason in one word,
	// and a sentence.
	Normal(ctx context.Context, pod *v1.Pod, container, reason, message string)
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// untold is Events for nobody to read.
type untold struct{}

// Normal implements Events.
func (untold) Normal(context.Context, *v1.Pod, string, string, string) {}

// Warning implements Events.
func (untold) Warning(context.Context, *v1.Pod, string, string, string) {}

// warn tells what went wrong with the pod, unless the work was cut short.
func (w *worker) warn(ctx context.Context, reason, message string) {
	if ctx.Err() == nil {
		w.pool.cfg.Events.Warning(ctx, w.pod, "", reason, cri.WithoutIDs(message, w.pod.Name))
	}
}
