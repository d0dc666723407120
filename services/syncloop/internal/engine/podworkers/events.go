package podworkers

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// Reasons of events, as the kubelet has them.
const (
	eventFailedSync    = "FailedSync"
	eventFailedKill    = "FailedKillPod"
	eventExceededGrace = "ExceededGracePeriod"
	eventResized       = "ResizeCompleted"
	eventResizeError   = "ResizeError"
)

// Events records what was done for pods and what failed; *podevents.Recorder implements it.
type Events interface {
	// Normal and Warning record an event of a container, or of the pod if container is empty. Reason is one word, message
	// a sentence.
	Normal(ctx context.Context, pod *v1.Pod, container, reason, message string)
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// noopEvents discards events.
type noopEvents struct{}

// Normal implements Events.
func (noopEvents) Normal(context.Context, *v1.Pod, string, string, string) {}

// Warning implements Events.
func (noopEvents) Warning(context.Context, *v1.Pod, string, string, string) {}

// warn records a failure of the pod, unless the work was cut short.
func (w *worker) warn(ctx context.Context, reason, message string) {
	if ctx.Err() == nil {
		w.pool.cfg.Events.Warning(ctx, w.pod, "", reason, cri.WithoutIDs(message, w.pod.Name))
	}
}

// warnOfClaims records that the resource claims of a pod of which nothing runs cannot be given back, if that is the
// error. The pod stays until they are, because the cluster then gives its devices to others.
func (w *worker) warnOfClaims(ctx context.Context, err error) {
	if claims := (*executor.ClaimsError)(nil); errors.As(err, &claims) {
		w.warn(ctx, eventFailedKill, "error killing pod: "+claims.Error())
	}
}
