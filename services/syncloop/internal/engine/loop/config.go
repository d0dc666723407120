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

// configEvent is a message of configmux's stream: a change, the end of a snapshot, or the loss of the connection.
type configEvent struct {
	change stream.Change[*Desired]
	synced bool
	// down is why the stream is disconnected; empty if it is not.
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
	if e.change.FromSnapshot { // until the snapshot is complete, the pods are not all known
		l.cfg.Mirrors.SetKnown(false, false)
	}
	switch {
	case e.down != "":
		l.configDown = "configmux is away, the pods stay as they are: " + e.down
		l.reportWaiting()
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
		l.reportMirrors()
	}
	l.progress()
}

// handlePod records one pod. The pods of a new snapshot wait until the snapshot is complete.
func (l *Loop) handlePod(c stream.Change[*Desired]) {
	removed := c.Op == stream.OpRemove
	uid := types.UID(c.Key)
	if removed && l.desired[uid] == nil {
		l.cfg.Mirrors.Gone(uid)
	}
	switch {
	case removed && c.FromSnapshot:
		// A restarted configmux may not have read the pod's source yet. The pod is gone only if the source is ready without
		// it.
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

// removalTrace returns the trace of a removal; empty if the message has none.
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
	l.reportMirrors()
	l.progress()
}

// want records a pod that a source names. A mirror pod is not run: it shows a static pod in the API server.
func (l *Loop) want(d *Desired) {
	uid := d.Pod.UID
	if isMirror(d.Pod) {
		l.cfg.Mirrors.Seen(d.Pod)
		return
	}
	known := l.desired[uid]
	if known != nil && d.Life != "" && d.Life != known.life {
		// The removal of the earlier life was folded into this change. A restarted configmux names no life; then the pod is
		// the same.
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
		next.allocating = known.allocating
		next.allocated, next.has, next.waits, next.promise = known.allocated, known.has, known.waits, known.promise
	}
	if next.allocated { // the loop decides later whether the new resources are allocated
		next.pod = next.has.On(d.Pod)
		l.countRequests(known, next)
	}
	l.desired[uid] = next
	l.checkFeatures(known, next)
	l.mirror(d)
	next.undecided = d.Pod.DeletionTimestamp == nil &&
		(known == nil || known.undecided || !resize.Of(known.wanted).Equal(resize.Of(next.wanted)))
	l.store(next)
	if op == podset.Reconcile && l.cfg.Workers.Has(uid) {
		next.traceparent = known.traceparent
		return // only the status in the API server has changed, which mostly came from here; workers ignore it
	}
	if !l.isOpen() && d.Pod.DeletionTimestamp == nil {
		l.showEviction(uid)
		l.hold(uid, podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: d.Traceparent})
		return
	}
	l.dispatch(uid, op, d.Traceparent)
}

// dispatch gives a pod to its worker.
func (l *Loop) dispatch(uid types.UID, op podset.Op, traceparent string) {
	d := l.desired[uid]
	var end *podworkers.End
	// The record of evictions may have been read after the pod was wanted.
	if evicted := l.showEviction(uid); evicted || d.pod.DeletionTimestamp != nil {
		end = &podworkers.End{}
	}
	if end == nil && l.refusePrivileges(uid, d, traceparent) {
		l.decide(uid, d)
		return
	}
	if end == nil && l.mayBeEvicted(uid, d) {
		return // housekeeping tries again
	}
	if end == nil &&
		(!l.clearName(d.pod) || !l.admit(telemetry.WithTraceparent(context.Background(), traceparent), uid, d)) {
		if d.refused {
			l.decide(uid, d)
		}
		return // housekeeping tries again, unless the pod was refused
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
		// An earlier process was ending the pod when it was killed, and its source has named it again since.
		l.cfg.Workers.EndAndWant(d.pod, cause)
		return
	}
	l.cfg.Workers.Want(d.pod, cause, end)
}

// clearName ends an orphan with the full name of a pod: another pod that was started before this process, such as the
// one of an earlier version of the manifest. It returns false while it is unknown whether that is an orphan.
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
			l.cfg.Store.Synced(pod.UID, podworkers.SyncReport{ReasonsKnown: true, Wait: wait.Reason})
			return false
		}
		l.endOrphan(observed)
	}
	return true
}

// remove ends a pod that its source does not name any more. It waits for nothing, not even for a healthy pleg.
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
	if d.refused && !l.cfg.Workers.Has(uid) && l.cfg.Store.IsNew(uid) {
		l.cfg.Store.Forget(uid) // nothing of it was ever created
		return
	}
	if !l.cfg.Workers.End(uid, cause, podworkers.End{Removed: true}) {
		// No worker of this process has had it, but an earlier process may have started it.
		l.cfg.Workers.Want(d.pod, cause, &podworkers.End{Removed: true})
	}
}

// removeMissing removes the pods that are missing from a new snapshot and whose source is ready.
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

// allReady reports whether every source is ready. Without sources, configmux has not sent them yet.
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

// span records the span of a dispatch, and returns the cause that continues it.
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
