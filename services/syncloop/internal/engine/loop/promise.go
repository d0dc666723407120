package loop

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// promise is a new allocation of a pod while it is written to disk: a restarted process has to know it before anything
// is changed. Admission of other pods counts it at once.
type promise struct {
	has     resize.Allocation
	before  resize.Record
	trigger resizeTrigger
}

// promise allocates the desired resources to a pod.
func (l *Loop) promise(uid types.UID, d *desiredPod, trigger resizeTrigger) {
	record, _ := l.cfg.Resizes.Get(uid)
	p := &promise{has: resize.Of(d.wanted), before: record, trigger: trigger}
	l.cfg.Resizes.Change(uid, d.has, func(r *resize.Record) {
		r.Allocated, r.Conditions = p.has, r.Conditions.Accept(d.wanted.Generation, l.cfg.Clock.Now())
		r.Actuated.Unfinished = true
	})
	d.promise = p
	l.saveResize(uid, func(err error) {
		if now := l.desired[uid]; now != nil && now.promise == p {
			l.keep(uid, now, err)
		}
	})
}

// keep hands a pod with its new allocation to its worker, or takes the allocation back if it could not be written to
// disk. The source may ask for something else by now.
func (l *Loop) keep(uid types.UID, d *desiredPod, err error) {
	p := d.promise
	d.promise = nil
	if err != nil {
		l.cfg.Resizes.Change(uid, d.has, func(r *resize.Record) {
			r.Allocated, r.Conditions, r.Actuated.Unfinished = d.has, p.before.Conditions, p.before.Actuated.Unfinished
		})
		l.resizeWaits(uid, d, v1.PodReasonDeferred, "the allocation cannot be written to disk: "+err.Error())
		return
	}
	if pending := p.before.Conditions.Pending; pending != nil && pending.Reason == v1.PodReasonDeferred {
		l.cfg.Metrics.deferredResizeAccepted(p.trigger)
		l.deferredOver(d, p.before.Conditions, resizeAccepted)
	}
	next := p.has.On(d.wanted)
	if resize.Shrinks(d.pod, next) { // which frees resources for other pods when it is done
		l.resizeLater = podResized
	}
	ctx := telemetry.WithTraceparent(context.Background(), d.traceparent)
	l.cfg.Logger.InfoContext(ctx, "pod resize started", telemetry.KeyPod, d.wanted.Namespace+"/"+d.wanted.Name,
		telemetry.KeyPodUID, string(uid))
	l.cfg.PodEvents.Normal(ctx, next, "", eventResizeStarted,
		"Pod resize started: "+resize.Summary(next, d.wanted.Generation, ""))
	d.has, d.undecided = p.has, next != d.wanted
	l.setPod(uid, d, next)
	if d.pod.DeletionTimestamp == nil && !d.refused && !l.cfg.Workers.Ending(uid) {
		l.cfg.Workers.Want(d.pod, podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: d.traceparent}, nil)
	}
	l.askForResize(uid, d, podUpdated)
}

// saving is a record that is being written to disk.
type saving struct {
	// callbacks are called with the result. next are the callbacks those of later changes; again is true if there are
	// later changes.
	callbacks, next []func(error)
	again           bool
}

// saveResize writes the record of a pod to disk outside of the loop's goroutine, one version after another, and calls
// done with the result.
func (l *Loop) saveResize(uid types.UID, done func(error)) {
	var callbacks []func(error)
	if done != nil {
		callbacks = append(callbacks, done)
	}
	if s := l.saving[uid]; s != nil {
		s.next, s.again = append(s.next, callbacks...), true
		return
	}
	s := &saving{callbacks: callbacks}
	l.saving[uid] = s
	l.runIO(eventConfig, func(context.Context) func() {
		err := l.cfg.Resizes.Save(uid)
		return func() { l.saved(uid, s, err) }
	})
}

// saved handles the result of a write.
func (l *Loop) saved(uid types.UID, s *saving, err error) {
	delete(l.saving, uid)
	if err != nil {
		l.cfg.Logger.Warn("cannot write the record of a pod's resize: check the disk of the state directory",
			telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
	}
	if s.again {
		l.saveResize(uid, nil)
		l.saving[uid].callbacks = s.next
	}
	for _, done := range s.callbacks {
		done(err)
	}
}
