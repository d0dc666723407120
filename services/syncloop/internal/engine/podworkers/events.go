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
)

// Events is told what cannot be done for pods; *podevents.Recorder keeps it.
type Events interface {
	// Warning tells something of a container of a pod, of the pod as a whole when container is empty: a reason in one word,
	// and a sentence.
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// untold is Events for nobody to read.
type untold struct{}

// Warning implements Events.
func (untold) Warning(context.Context, *v1.Pod, string, string, string) {}

// warn tells what went wrong with the pod, unless the work was cut short.
func (w *worker) warn(ctx context.Context, reason, message string) {
	if ctx.Err() == nil {
		w.pool.cfg.Events.Warning(ctx, w.pod, "", reason, cri.WithoutIDs(message, w.pod.Name))
	}
}
