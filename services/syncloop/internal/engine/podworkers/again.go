package podworkers

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
)

// EndAndWant ends the life of a pod that an earlier process was ending, and sets the desired pod of its next life. Both
// are one step, so that the end knows that the pod comes back. The pod must not have a worker.
func (p *Pool) EndAndWant(pod *v1.Pod, cause Cause) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want(pod, cause, &End{Removed: true})
	p.want(pod, cause, nil)
}

// continues reports whether the ended containers of a removed pod stay for its next life, which then continues their
// restart counts. It is false if the pod does not come back, or if a container would not run again.
func (w *worker) continues(observed *lifecyclev1.PodStatus) bool {
	next := w.pool.nextLife(w.uid, nameOf(w.pod))
	return next != nil && decide.Continues(next, observed)
}

// handOver leaves the ended containers of a pod to its next life, which continues their restart counts and their logs
// as that of a kubelet does. Their ends are no crashes.
func (w *worker) handOver(ctx context.Context, span trace.Span, observed *lifecyclev1.PodStatus) outcome {
	cfg := w.pool.cfg
	for _, c := range observed.GetContainers() {
		if err := cfg.Endings.NoteReplaced(w.uid, c.GetId()); err != nil {
			cfg.Logger.WarnContext(ctx, "if syncloop is killed before the pod runs again, the end of its container counts as a crash",
				telemetry.KeyPod, w.fullName.String(), telemetry.KeyPodUID, string(w.uid), telemetry.KeyError, err)
		}
	}
	if err := cfg.Runtime.ReleasePod(ctx, w.pod); err != nil {
		w.warnOfClaims(ctx, err)
		return w.failed(ctx, span, fmt.Errorf("give back what the pod held: %w", err), transientDelay)
	}
	return outcome{input: InputCleaned}
}

// nextLife returns the pod that waits for the end of its earlier life; nil if none waits, or if it is not to run.
func (p *Pool) nextLife(uid types.UID, name types.NamespacedName) *v1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, next := range p.waiting[name] {
		if next.uid == uid && next.update.End == nil {
			return next.update.Pod
		}
	}
	return nil
}
