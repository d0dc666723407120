package podworkers

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// Resizes has the records of resized pods; *resizes.Book implements it.
type Resizes interface {
	// Get returns the record of a pod; ok is false for a pod that was never resized.
	Get(uid types.UID) (record resize.Record, ok bool)
	// Note changes the record. After an error, a restarted process does not know the change.
	Note(uid types.UID, has resize.Allocation, change func(*resize.Record)) error
}

// takeOver requests a new observation of a pod that an earlier process was resizing. That process may have changed the
// containers after the last observation, and the runtime has no event for that.
func (w *worker) takeOver() {
	cfg := w.pool.cfg
	if cfg.Resizes == nil || w.lastWrite != 0 {
		return
	}
	if record, _ := cfg.Resizes.Get(w.uid); record.Conditions.InProgress != nil {
		w.lastWrite = cfg.BootTime()
	}
}

// resizing updates the condition PodResizeInProgress from an observation: it stays until the pod runs with its
// allocation.
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
		w.pool.cfg.Logger.InfoContext(ctx, "pod resize completed", telemetry.KeyPod, w.fullName.String(), telemetry.KeyPodUID,
			string(w.uid))
		w.pool.cfg.Events.Normal(ctx, w.pod, "", eventResized, "Pod resize completed: "+resize.Summary(w.pod, generation, ""))
	}
}

// resizeFailed sets the error in the condition PodResizeInProgress.
func (w *worker) resizeFailed(ctx context.Context, err error) {
	var generation int64
	news := false
	w.noteResize(ctx, func(r *resize.Record) {
		r.Conditions, news = r.Conditions.Fail(err.Error(), w.pod.Generation, w.pool.cfg.Clock.Now())
		generation = r.Conditions.InProgress.Generation
	})
	if news {
		w.pool.cfg.Events.Warning(ctx, w.pod, "", eventResizeError,
			"Pod resize error: "+resize.Summary(w.pod, generation, err.Error()))
	}
}

// noteResize changes the record of a pod's resize, unless the pod has another allocation by now: this worker does not
// have that version of the pod yet.
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
		cfg.Logger.WarnContext(ctx, "cannot write the conditions of a pod's resize: after a restart, syncloop repeats them",
			telemetry.KeyPod, w.fullName.String(), telemetry.KeyPodUID, string(w.uid), telemetry.KeyError, err)
	}
	cfg.Statuses.Resized(w.uid)
}
