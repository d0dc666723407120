package loop

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// Reasons of events, as the kubelet has them.
const (
	eventResizeStarted    = "ResizeStarted"
	eventResizeDeferred   = "ResizeDeferred"
	eventResizeInfeasible = "ResizeInfeasible"
)

// recorded returns the resources that an earlier process allocated to a pod: the recorded ones, or else those that its
// containers were created with.
func (l *Loop) recorded(uid types.UID, d *desiredPod) resize.Allocation {
	record, known := l.cfg.Resizes.Get(uid)
	switch {
	case known:
		return record.Allocated
	case l.cfg.Workers.Ending(uid): // the running containers belong to an earlier pod with this UID
		return resize.Of(d.wanted)
	case l.lostResize(uid):
		return resize.Rebuild(d.wanted, l.cfg.Store.Observed(uid)).Allocated
	}
	return resize.Recover(d.wanted, l.cfg.Store.Observed(uid))
}

// lostResize reports whether the record of a pod was lost. Without the directory that is unknown, so each pod that an
// earlier process has run counts.
func (l *Loop) lostResize(uid types.UID) bool {
	if l.cfg.Resizes.Lost(uid) {
		return true
	}
	_, known := l.cfg.Resizes.Get(uid)
	observed := l.cfg.Store.Observed(uid)
	return l.cfg.Resizes.AllLost() && !known && len(observed.GetContainers()) > 0
}

// allocate determines, once in this process, the resources that are allocated to an admitted pod. A new pod gets those
// of its spec.
func (l *Loop) allocate(uid types.UID, d *desiredPod) {
	if d.allocated {
		return
	}
	d.allocated, d.has = true, l.recorded(uid, d)
	if l.lostResize(uid) {
		rebuilt := resize.Rebuild(d.wanted, l.cfg.Store.Observed(uid))
		l.noteResize(uid, d, func(r *resize.Record) { r.Actuated, r.Actuated.Unfinished = rebuilt.Actuated, true })
	}
	l.setPod(uid, d, d.has.On(d.wanted))
}

// asItIs returns a pod as its source names it, with the allocated resources.
func (l *Loop) asItIs(uid types.UID, d *desiredPod) *v1.Pod {
	switch {
	case !d.allocated:
		return l.recorded(uid, d).On(d.wanted)
	case d.promise != nil:
		return d.promise.has.On(d.wanted)
	}
	return d.pod
}

// setPod makes pod the version for readers and for the worker.
func (l *Loop) setPod(uid types.UID, d *desiredPod, pod *v1.Pod) {
	if pod == d.pod {
		return
	}
	d.pod = pod
	l.store(d)
	l.cfg.Store.Resized(uid)
}

// store makes a pod visible to readers.
func (l *Loop) store(d *desiredPod) {
	if d.undecided {
		l.cfg.Store.SetUndecided(d.pod, d.source, d.traceparent)
	} else {
		l.cfg.Store.SetPod(d.pod, d.source, d.traceparent)
	}
}

// decide notes that the resize of the current version of a pod is decided: its conditions are complete.
func (l *Loop) decide(uid types.UID, d *desiredPod) {
	if d.undecided {
		d.undecided = false
		l.cfg.Store.Decide(uid)
	}
}

// askForResize requests a resize if an admitted pod asks for other resources than are allocated to it. At the end of
// the current event, resizePods decides about all pods that wait.
func (l *Loop) askForResize(uid types.UID, d *desiredPod, trigger resizeTrigger) {
	if d.waits = d.has.On(d.wanted) != d.wanted; d.waits {
		l.resizeFor = trigger
		return
	}
	l.settleResize(uid, d, resizeReverted)
	l.decide(uid, d)
}

// settleResize removes the condition PodResizePending, because nobody waits for the resize any more.
func (l *Loop) settleResize(uid types.UID, d *desiredPod, resolution resizeResolution) {
	record, known := l.cfg.Resizes.Get(uid)
	if !known || record.Conditions.Pending == nil {
		return
	}
	l.deferredOver(d, record.Conditions, resolution)
	l.noteResize(uid, d, func(r *resize.Record) { r.Conditions = r.Conditions.Settle() })
}

// noteResize changes the record of a pod's resize.
func (l *Loop) noteResize(uid types.UID, d *desiredPod, change func(*resize.Record)) {
	l.cfg.Resizes.Change(uid, d.has, change)
	l.cfg.Store.Resized(uid)
	l.saveResize(uid, nil)
}

// deferredOver records how long a resize was deferred.
func (l *Loop) deferredOver(d *desiredPod, conditions resize.Conditions, resolution resizeResolution) {
	if p := conditions.Pending; p != nil && p.Reason == v1.PodReasonDeferred {
		l.cfg.Metrics.deferredResizeOver(resolution, resize.PriorityClass(d.wanted.Spec.Priority), l.cfg.Clock.Since(p.Since))
	}
}

// countRequests counts the changes that a new version of a pod asks for. An infeasible resize may be feasible with it.
func (l *Loop) countRequests(known, next *desiredPod) {
	requests := resize.Requests(known.wanted, next.wanted)
	for _, r := range requests {
		l.cfg.Metrics.resizeRequested(r)
	}
	next.infeasible = known.infeasible && resize.Of(known.wanted).Equal(resize.Of(next.wanted))
}

// resizePods decides about all pods that wait for a resize, in the order of package resize, once every source has named
// its pods and the Node is known, or should be by now. Housekeeping and the removal of a pod retry the deferred ones.
func (l *Loop) resizePods(trigger resizeTrigger) {
	if !l.isOpen() || !l.allReady() || l.awaitsNode() {
		return
	}
	var waiting []resize.Waiting
	for uid, d := range l.desired {
		if !d.waits || d.infeasible || d.promise != nil || d.pod.DeletionTimestamp != nil || l.cfg.Workers.Ending(uid) {
			continue
		}
		if phase := l.cfg.Store.Phase(uid); phase == v1.PodSucceeded || phase == v1.PodFailed {
			d.waits = false
			l.settleResize(uid, d, resizeTerminated)
			l.decide(uid, d)
			continue
		}
		w := resize.Waiting{Wanted: d.wanted, Allocated: d.pod}
		if record, known := l.cfg.Resizes.Get(uid); known && record.Conditions.Pending != nil {
			w.Since = record.Conditions.Pending.Since
		}
		waiting = append(waiting, w)
	}
	resize.Order(waiting)
	for _, w := range waiting {
		l.resizePod(w.Wanted.UID, l.desired[w.Wanted.UID], trigger)
	}
}

// resizeAgain retries the deferred resizes, and finds out what may have freed resources since the last time.
func (l *Loop) resizeAgain() {
	if !l.anyWaits() {
		l.lastActive = 0
		return
	}
	trigger, active := periodic, l.countActive()
	switch {
	case l.resizeLater != "":
		trigger = l.resizeLater
	case active < l.lastActive:
		trigger = podTerminated
	}
	l.resizeLater, l.lastActive = "", active
	l.resizePods(trigger)
}

// countActive returns the number of pods that use the node's resources.
func (l *Loop) countActive() (count int) {
	for uid, d := range l.desired {
		if l.isActive(uid, d) {
			count++
		}
	}
	return count
}

func (l *Loop) anyWaits() bool {
	for _, d := range l.desired {
		if d.waits && !d.infeasible {
			return true
		}
	}
	return false
}

// resizePod allocates the desired resources to a pod, or sets in its status why not.
func (l *Loop) resizePod(uid types.UID, d *desiredPod, trigger resizeTrigger) {
	if refusal := resize.Infeasible(d.wanted, d.pod, l.cfg.Resizing); refusal != nil {
		d.infeasible = true
		l.cfg.Metrics.resizeInfeasible(refusal.Detail)
		l.resizeWaits(uid, d, v1.PodReasonInfeasible, refusal.Message)
		return
	}
	if message := l.noRoom(uid, d); message != "" {
		l.resizeWaits(uid, d, v1.PodReasonDeferred, message)
		return
	}
	l.promise(uid, d, trigger)
}

// noRoom returns why the node cannot allocate the desired resources of a pod now; empty if it can. As in a kubelet, the
// pod has to pass admission again, beside the other pods.
func (l *Loop) noRoom(uid types.UID, d *desiredPod) string {
	if l.cfg.Node != nil && l.node == nil {
		return "the node's resources are not known yet"
	}
	if problem := l.cfg.Resizes.Unread(uid); problem != nil {
		return "what was allocated to it is not known: " + problem.Error()
	}
	if l.shuttingDown {
		return admission.NodeShutdown().Message
	}
	if !l.areGone(d.behind) {
		return "pods are being ended to make room for it"
	}
	var refusal *admission.Refusal
	l.withActive(uid, func(others []*v1.Pod) {
		refusal = admission.Check(admission.Request{
			Pod: d.wanted, Static: podset.IsStaticSource(d.source), Critical: isCritical(d), Others: others, Node: l.node,
			Machine: l.cfg.Machine, UnsafeSysctls: l.cfg.UnsafeSysctls,
			Features: l.cfg.Features,
		})
	})
	if refusal == nil {
		d.behind = nil
		return ""
	}
	l.preempt(telemetry.WithTraceparent(context.Background(), d.traceparent), uid, d, refusal)
	return refusal.Message
}

// resizeWaits sets in the status of a pod why it keeps its resources.
func (l *Loop) resizeWaits(uid types.UID, d *desiredPod, reason, message string) {
	news := false
	l.noteResize(uid, d, func(r *resize.Record) {
		r.Conditions, news = r.Conditions.Wait(reason, message, d.wanted.Generation, l.cfg.Clock.Now())
	})
	l.decide(uid, d)
	if !news {
		return
	}
	event := eventResizeDeferred
	if reason == v1.PodReasonInfeasible {
		event = eventResizeInfeasible
	}
	ctx := telemetry.WithTraceparent(context.Background(), d.traceparent)
	l.cfg.Logger.InfoContext(ctx, "pod resize is pending", telemetry.KeyPod, d.wanted.Namespace+"/"+d.wanted.Name,
		telemetry.KeyPodUID, string(uid), telemetry.KeyReason, reason, telemetry.KeyError, message)
	l.cfg.PodEvents.Warning(ctx, d.wanted, "", event,
		"Pod resize "+reason+": "+resize.Summary(d.wanted, d.wanted.Generation, message))
}

// forgetResize drops the record of a pod that its source does not name any more.
func (l *Loop) forgetResize(uid types.UID) {
	if _, known := l.cfg.Resizes.Get(uid); known {
		l.cfg.Resizes.Forget(uid)
		l.saveResize(uid, nil)
	}
}

// forgetResizes drops the records of pods that were removed while this process did not run.
func (l *Loop) forgetResizes() {
	for _, uid := range l.cfg.Resizes.UIDs() {
		if l.desired[uid] == nil {
			l.forgetResize(uid)
		}
	}
}
