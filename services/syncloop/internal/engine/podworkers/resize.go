package podworkers

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// Resizes has the records of the pods that were to be resized; *resizes.Book does.
type Resizes interface {
	// Get returns the record of a pod; not ok is one that was never to be resized.
	Get(uid types.UID) (record resize.Record, ok bool)
	// Note changes it. With an error the next process does not know of the change.
	Note(uid types.UID, has resize.Allocation, change func(*resize.Record)) error
}

// resizing says in the conditions of a pod whether it runs with what was promised to it, by an observation.
func (w *worker) resizing(ctx context.Context, observed *lifecyclev1.PodStatus) {
	var generation int64
	done := false
	w.noteResize(ctx, func(r *resize.Record) {
		if resize.InProgress(w.pod, observed, r.Actuated) {
			r.Conditions = r.Conditions.Continue(w.pod.Generation, w.pool.cfg.Clock.Now())
		} else {
			r.Conditions, generation, done = r.Conditions.Done()
		}
	})
	if done {
		w.pool.cfg.Logger.InfoContext(ctx, "a pod was resized", telemetry.KeyPod, w.fullName.String(), telemetry.KeyPodUID, string(w.uid))
		w.pool.cfg.Events.Normal(ctx, w.pod, "", eventResized, "Pod resize completed: "+resize.Summary(w.pod, generation, ""))
	}
}

// resizeFailed says in the conditions of a pod why it could not be resized.
func (w *worker) resizeFailed(ctx context.Context, err error) {
	var generation int64
	news := false
	w.noteResize(ctx, func(r *resize.Record) {
		r.Conditions, news = r.Conditions.Fail(err.Error(), w.pod.Generation, w.pool.cfg.Clock.Now())
		generation = r.Conditions.InProgress.Generation
	})
	if news {
		w.pool.cfg.Events.Warning(ctx, w.pod, "", eventResizeError, "Pod resize error: "+resize.Summary(w.pod, generation, err.Error()))
	}
}

// noteResize changes what is said of a pod's resize, unless something else was promised to the pod meanwhile: then that comes next, and
// what is known here is not about it.
func (w *worker) noteResize(ctx context.Context, change func(*resize.Record)) {
	cfg := w.pool.cfg
	if cfg.Resizes == nil {
		return
	}
	if _, resized := cfg.Resizes.Get(w.uid); !resized {
		return
	}
	has := resize.Of(w.pod)
	err := cfg.Resizes.Note(w.uid, has, func(r *resize.Record) {
		if r.Allocated.Equal(has) {
			change(r)
		}
	})
	if err != nil {
		cfg.Logger.WarnContext(ctx, "what is said of a pod's resize cannot be written to disk; the next syncloop says it again",
			telemetry.KeyPod, w.fullName.String(), telemetry.KeyPodUID, string(w.uid), telemetry.KeyError, err)
	}
	cfg.Statuses.Resized(w.uid)
}
