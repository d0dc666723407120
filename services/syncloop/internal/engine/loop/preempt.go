package loop

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// The reason and message of a preempted pod, in the kubelet's words.
const (
	reasonPreempting  = "Preempting"
	messagePreempting = "Preempted in order to admit critical pod"
	messageDisruption = "Pod was preempted by Kubelet to accommodate a critical pod."
)

func isCritical(d *desiredPod) bool {
	return admission.IsCritical(d.pod, podset.IsStaticSource(d.source))
}

// preempt ends pods so that a critical one can be admitted that lacks resources, and reports whether it has. The
// critical pod then waits until they are gone. If even all candidates together would not suffice, none is ended.
func (l *Loop) preempt(cause context.Context, uid types.UID, d *desiredPod, refusal *admission.Refusal) bool {
	if l.cfg.Preempt == nil || len(refusal.Short) == 0 || !isCritical(d) {
		return false
	}
	var candidates []admission.Victim
	l.withActive(uid, func(others []*v1.Pod) {
		for _, other := range others {
			pod := *other
			candidates = append(candidates, admission.Victim{Pod: &pod, Critical: isCritical(l.desired[pod.UID])})
		}
	})
	victims, ok := admission.Preempt(d.pod, refusal.Short, candidates)
	if !ok || len(victims) == 0 {
		return false
	}
	for _, victim := range victims {
		l.cfg.Logger.InfoContext(cause, "ending a pod to make room for a critical one", telemetry.KeyPod, victim.Namespace+"/"+victim.Name,
			telemetry.KeyPodUID, string(victim.UID), telemetry.KeyReason, d.pod.Namespace+"/"+d.pod.Name)
		eviction := podstore.Eviction{
			Reason: reasonPreempting, Message: messagePreempting, Disruption: messageDisruption, At: l.cfg.Clock.Now(),
		}
		d.behind = append(d.behind, victim.UID)
		l.preemptOne(cause, uid, victim, eviction, string(refusal.Short[0].Resource))
	}
	return true
}

// preemptOne ends a pod for the critical pod with a UID. If that fails, the critical pod stops waiting for it, and
// housekeeping checks again what is missing.
func (l *Loop) preemptOne(
	cause context.Context, critical types.UID, victim *v1.Pod, eviction podstore.Eviction, short string,
) {
	l.runIO(eventConfig, func(context.Context) func() {
		err := l.cfg.Preempt(cause, victim.UID, eviction)
		return func() {
			if err == nil {
				l.cfg.Metrics.preempted(short)
				return
			}
			l.cfg.Logger.WarnContext(cause, "a pod cannot be ended to make room for a critical one", telemetry.KeyPod, victim.Namespace+"/"+victim.Name,
				telemetry.KeyPodUID, string(victim.UID), telemetry.KeyError, err)
			if d := l.desired[critical]; d != nil {
				d.behind = slices.DeleteFunc(slices.Clone(d.behind), func(uid types.UID) bool { return uid == victim.UID })
			}
		}
	})
}

// areGone reports whether nothing of some pods runs any more.
func (l *Loop) areGone(uids []types.UID) bool {
	for _, uid := range uids {
		if podview.AnyAlive(l.cfg.Store.Observed(uid)) {
			return false
		}
	}
	return true
}
