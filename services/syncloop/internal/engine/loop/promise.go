package loop

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// promise is what the node promises to a pod, while that is being written to disk: the next process has to know of it before anything
// is changed. The pod's share of the node is taken at once.
type promise struct {
	has     resize.Allocation
	before  resize.Conditions
	trigger resizeTrigger
}

// promise promises a pod what it wants.
func (l *Loop) promise(uid types.UID, d *desiredPod, trigger resizeTrigger) {
	record, _ := l.cfg.Resizes.Get(uid)
	p := &promise{has: resize.Of(d.wanted), before: record.Conditions, trigger: trigger}
	l.cfg.Resizes.Change(uid, d.has, func(r *resize.Record) {
		r.Allocated, r.Conditions = p.has, r.Conditions.Accept(d.wanted.Generation, l.cfg.Clock.Now())
	})
	d.promise = p
	l.saveResize(uid, func(err error) {
		if now := l.desired[uid]; now != nil && now.promise == p {
			l.keep(uid, now, err)
		}
	})
}

// keep has a pod resized to what was promised to it, or takes the promise back when that could not be written to disk. Something else
// may be wanted by now.
func (l *Loop) keep(uid types.UID, d *desiredPod, err error) {
	p := d.promise
	d.promise = nil
	if err != nil {
		l.cfg.Resizes.Change(uid, d.has, func(r *resize.Record) { r.Allocated, r.Conditions = d.has, p.before })
		l.resizeWaits(uid, d, v1.PodReasonDeferred, "what the node promises cannot be written to disk: "+err.Error())
		return
	}
	if pending := p.before.Pending; pending != nil && pending.Reason == v1.PodReasonDeferred {
		l.cfg.Metrics.deferredResizeAccepted(p.trigger)
		l.deferredOver(d, p.before, resizeAccepted)
	}
	next := p.has.On(d.wanted)
	if resize.Shrinks(d.pod, next) { // others have more room when that is done
		l.resizeLater = podResized
	}
	ctx := telemetry.WithTraceparent(context.Background(), d.traceparent)
	l.cfg.Logger.InfoContext(ctx, "a pod is resized", telemetry.KeyPod, d.wanted.Namespace+"/"+d.wanted.Name, telemetry.KeyPodUID, string(uid))
	l.cfg.PodEvents.Normal(ctx, next, "", eventResizeStarted, "Pod resize started: "+resize.Summary(next, d.wanted.Generation, ""))
	d.has, d.undecided = p.has, next != d.wanted
	l.setPod(uid, d, next)
	if d.pod.DeletionTimestamp == nil && !l.cfg.Workers.Ending(uid) {
		l.cfg.Workers.Want(d.pod, podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: d.traceparent}, nil)
	}
	l.askForResize(uid, d, podUpdated)
}

// saving is the record of one pod that is being written to disk.
type saving struct {
	// then are told what has come of it. Next are those of what was changed since; again is true when there was such a change.
	then, next []func(error)
	again      bool
}

// saveResize has what is known of a pod's resize written to disk aside, one version after another, and tells then what has come of it.
func (l *Loop) saveResize(uid types.UID, then func(error)) {
	var told []func(error)
	if then != nil {
		told = append(told, then)
	}
	if s := l.saving[uid]; s != nil {
		s.next, s.again = append(s.next, told...), true
		return
	}
	s := &saving{then: told}
	l.saving[uid] = s
	l.aside(eventConfig, func(context.Context) func() {
		err := l.cfg.Resizes.Save(uid)
		return func() { l.saved(uid, s, err) }
	})
}

// saved takes in that a record is on disk, or why it is not.
func (l *Loop) saved(uid types.UID, s *saving, err error) {
	delete(l.saving, uid)
	if err != nil {
		l.cfg.Logger.Warn("the record of a pod's resize cannot be written to disk: mend the disk of the state directory",
			telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
	}
	if s.again {
		l.saveResize(uid, nil)
		l.saving[uid].then = s.next
	}
	for _, then := range s.then {
		then(err)
	}
}
