package loop

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// configEvent is one word from configmux's stream: a change, or, with synced, that all that was to be known is known.
type configEvent struct {
	change stream.Change[*Desired]
	synced bool
	// down is why the stream is away; empty when it is not.
	down string
}

func (l *Loop) followConfig(ctx context.Context) error {
	send := func(e configEvent) {
		select {
		case l.config <- e:
		case <-ctx.Done():
		}
	}
	return stream.Follow(ctx, stream.FollowConfig[*Desired]{
		Name: "configmux", Source: l.cfg.Desired, Clock: l.cfg.Clock, Logger: l.cfg.Logger, Metrics: l.cfg.DesiredMetrics,
		Handle: func(c stream.Change[*Desired]) { send(configEvent{change: c}) },
		Synced: func() { send(configEvent{synced: true}) },
		Connected: func(up bool, cause error) {
			if !up && cause != nil {
				send(configEvent{down: cause.Error()})
			}
		},
	})
}

func (l *Loop) handleConfig(e configEvent) {
	if e.change.FromSnapshot { // until all of it has come, less is known than before
		l.cfg.Mirrors.SetKnown(false, false)
	}
	switch {
	case e.down != "":
		l.configDown = "configmux is away, the pods stay as they are: " + e.down
		l.tellWaiting()
	case e.synced:
		l.configIsSynced()
	case isSource(e.change):
		l.handleSource(e.change)
	default:
		l.handlePod(e.change)
	}
}

func isSource(c stream.Change[*Desired]) bool { return strings.HasPrefix(c.Key, "source/") }

func (l *Loop) handleSource(c stream.Change[*Desired]) {
	name := strings.TrimPrefix(c.Key, "source/")
	if c.Op == stream.OpRemove {
		delete(l.sources, name)
	} else {
		l.sources[name] = c.New.Ready
	}
	if !c.FromSnapshot {
		l.removeMissing()
		l.tellMirrors()
	}
	l.progress()
}

// handlePod takes in one pod. What a fresh snapshot brings waits until the snapshot is complete.
func (l *Loop) handlePod(c stream.Change[*Desired]) {
	removed := c.Op == stream.OpRemove
	uid := types.UID(c.Key)
	if removed && l.desired[uid] == nil {
		l.cfg.Mirrors.Gone(uid)
	}
	switch {
	case removed && c.FromSnapshot:
		// A configmux that was restarted may not have read the pod's source yet. Only when that has spoken is the pod
		// known to be gone.
		if d := l.desired[uid]; d != nil {
			d.missing = true
		}
	case removed:
		l.remove(uid, removalTrace(c))
	case c.FromSnapshot:
		l.snapshot = append(l.snapshot, c.New)
	default:
		l.want(c.New)
	}
}

// removalTrace returns the trace of a removal: of the message that says it, if it says more than the one before.
func removalTrace(c stream.Change[*Desired]) string {
	if c.New != nil {
		return c.New.Traceparent
	}
	return ""
}

func (l *Loop) configIsSynced() {
	l.configDown = ""
	slices.SortStableFunc(l.snapshot, func(a, b *Desired) int {
		return a.Pod.CreationTimestamp.Compare(b.Pod.CreationTimestamp.Time)
	})
	for _, d := range l.snapshot {
		l.want(d)
	}
	l.snapshot, l.configSynced = nil, true
	l.removeMissing()
	l.tellMirrors()
	l.progress()
}

// want takes in a pod that a source names. A mirror pod is none to run: it is what the API server shows of a static pod.
func (l *Loop) want(d *Desired) {
	uid := d.Pod.UID
	if isMirror(d.Pod) {
		l.cfg.Mirrors.Seen(d.Pod)
		return
	}
	known := l.desired[uid]
	if known != nil && d.Life != "" && d.Life != known.life {
		// Its removal was folded into this. A configmux that was restarted names no life of what it found: that runs on.
		l.remove(uid, d.Traceparent)
		known = nil
	}
	var op podset.Op
	if known == nil {
		op = podset.Compare(nil, d.Pod)
	} else {
		op = podset.Compare(known.wanted, d.Pod)
		known.missing, known.life = false, d.Life
	}
	if op == podset.None && known.source == d.Source {
		return
	}
	next := &desiredPod{pod: d.Pod, wanted: d.Pod, source: d.Source, life: d.Life, traceparent: d.Traceparent}
	if known != nil {
		next.admitted, next.refused, next.behind = known.admitted, known.refused, known.behind
		next.allocated, next.has, next.waits, next.promise = known.allocated, known.has, known.waits, known.promise
	}
	if next.allocated { // it is decided later whether it gets what is wanted
		next.pod = next.has.On(d.Pod)
		l.countRequests(known, next)
	}
	l.desired[uid] = next
	l.mirror(d)
	next.undecided = d.Pod.DeletionTimestamp == nil &&
		(known == nil || known.undecided || !resize.Of(known.wanted).Equal(resize.Of(next.wanted)))
	l.store(next)
	if op == podset.Reconcile && l.cfg.Workers.Has(uid) {
		next.traceparent = known.traceparent
		return // the API server has another status: nothing that a worker has to do with, and mostly what it was told from here
	}
	if eviction, ok := l.evicted(uid); ok {
		if err := l.cfg.Store.Evict(uid, eviction); err != nil {
			l.cfg.Logger.Error("an evicted pod is not known any more", telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
		}
	}
	if !l.isOpen() && d.Pod.DeletionTimestamp == nil {
		l.hold(uid, podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: d.Traceparent})
		return
	}
	l.dispatch(uid, op, d.Traceparent)
}

// dispatch hands a pod to its worker.
func (l *Loop) dispatch(uid types.UID, op podset.Op, traceparent string) {
	d := l.desired[uid]
	var end *podworkers.End
	if _, evicted := l.evicted(uid); evicted || d.pod.DeletionTimestamp != nil {
		end = &podworkers.End{}
	}
	if end == nil && (!l.clearName(d.pod) || !l.admit(telemetry.WithTraceparent(context.Background(), traceparent), uid, d)) {
		if d.refused {
			l.decide(uid, d)
		}
		return // housekeeping comes back to one that is not refused
	}
	if end != nil {
		l.decide(uid, d)
	}
	if end == nil {
		l.allocate(uid, d)
		trigger := podUpdated
		if op == podset.Add {
			trigger = podsAdded
		}
		l.askForResize(uid, d, trigger)
	}
	cause := l.span(d, op, traceparent)
	if _, ending := l.cfg.Endings.Remaining(uid); end == nil && ending && !l.cfg.Workers.Has(uid) {
		// A process before this one was ending it when it was killed, and its source has named it again since.
		l.cfg.Workers.Want(d.pod, cause, &podworkers.End{Removed: true})
	}
	l.cfg.Workers.Want(d.pod, cause, end)
}

// clearName sees to it that nobody else of a pod's full name runs from before this process began, as when the manifest
// was changed meanwhile: what does is an orphan, and is ended first. It returns false while it cannot tell that yet.
func (l *Loop) clearName(pod *v1.Pod) bool {
	if l.cfg.Workers.Has(pod.UID) {
		return true
	}
	for _, observed := range l.cfg.Store.Unknown() {
		if observed.GetName() != pod.Name || observed.GetNamespace() != pod.Namespace || !podworkers.Runs(observed) ||
			l.cfg.Workers.Has(types.UID(observed.GetUid())) {
			continue
		}
		if !l.isOrphan(observed) {
			wait := podworkers.WaitOf(podworkers.Facts{Behind: types.UID(observed.GetUid()), Contested: true})
			l.cfg.Store.Synced(pod.UID, podworkers.SyncReport{Waits: true, Wait: wait.Reason})
			return false
		}
		l.endOrphan(observed)
	}
	return true
}

// remove ends a pod that its source does not name any more. It waits for nothing, not even for pleg to be well.
func (l *Loop) remove(uid types.UID, traceparent string) {
	d := l.desired[uid]
	if d == nil {
		return
	}
	cause := l.span(d, podset.Remove, traceparent)
	delete(l.desired, uid)
	delete(l.held, uid)
	l.settleResize(uid, d, resizeTerminated)
	l.forgetResize(uid)
	l.resizeFor = podsRemoved
	l.cfg.Mirrors.Unwant(uid)
	l.forgetEviction(uid)
	l.cfg.Store.Unwant(uid)
	if d.refused && !l.cfg.Workers.Has(uid) {
		l.cfg.Store.Forget(uid) // nothing of it was ever made
		return
	}
	if !l.cfg.Workers.End(uid, cause, podworkers.End{Removed: true}) {
		// It was never handed to a worker, but may run since before this process began.
		l.cfg.Workers.Want(d.pod, cause, &podworkers.End{Removed: true})
	}
}

// removeMissing removes the pods that a fresh snapshot did not have, as far as their sources have spoken since.
func (l *Loop) removeMissing() {
	for uid, d := range l.desired {
		if !d.missing {
			continue
		}
		if ready, known := l.sources[d.source]; ready || (!known && l.allReady()) {
			l.remove(uid, "")
		}
	}
}

// allReady tells whether every source has spoken. A configmux that names no source has not told which there are.
func (l *Loop) allReady() bool {
	if !l.configSynced || len(l.sources) == 0 {
		return false
	}
	for _, ready := range l.sources {
		if !ready {
			return false
		}
	}
	return true
}

// span makes the span of a dispatch, and returns the cause that continues it.
func (l *Loop) span(d *desiredPod, op podset.Op, traceparent string) podworkers.Cause {
	ctx, span := telemetry.Start(telemetry.WithTraceparent(context.Background(), traceparent), l.cfg.Tracer, "dispatch",
		telemetry.Subject{Namespace: d.pod.Namespace, Pod: d.pod.Name, UID: string(d.pod.UID)})
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrSource.String(d.source), telemetry.AttrOp.String(op.String()))
	}
	span.End()
	l.cfg.Logger.InfoContext(ctx, "dispatched a pod", telemetry.KeyPod, d.pod.Namespace+"/"+d.pod.Name,
		telemetry.KeyPodUID, string(d.pod.UID), telemetry.KeySource, d.source, telemetry.KeyOp, op.String())
	return podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: telemetry.Traceparent(ctx)}
}
