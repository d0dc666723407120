package loop

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// orphanGrace is the grace period in seconds of a pod that no source names and whose spec is unknown.
const orphanGrace int64 = 1

// sweepPeriod is the interval of searches for directories of pods that are gone. A search reads two directories.
const sweepPeriod = 10 * time.Second

// housekeep cleans up. It removes nothing before every source is ready and pleg's snapshot is complete.
func (l *Loop) housekeep() {
	begun := l.cfg.Clock.Now()
	l.show()
	l.reportWaiting()
	l.cfg.Workers.Tidy()
	if l.isOpen() {
		l.takeEvictions()
		l.readResizes()
		l.startUnknown()
		l.resizeAgain()
		l.endOverdue()
		if l.allReady() {
			l.endOrphans()
			l.forgetEvictions()
			l.forgetEndings()
			l.forgetResizes()
			l.forgetProbes()
		}
	}
	if took := l.cfg.Clock.Since(begun); took > housekeepingWarning {
		l.cfg.Logger.Warn("housekeeping held up the sync loop", telemetry.KeyDuration, took)
	}
}

// endOrphans ends the running pods that no source names.
func (l *Loop) endOrphans() {
	for _, observed := range l.cfg.Store.Unknown() {
		if !l.cfg.Workers.Has(types.UID(observed.GetUid())) {
			l.endOrphan(observed)
		}
	}
}

// isOrphan reports whether certainly no source names a running pod: its own source is ready, or all are.
func (l *Loop) isOrphan(observed *lifecyclev1.PodStatus) bool {
	if !l.configSynced {
		return false
	}
	for _, s := range observed.GetSandboxes() {
		if l.sources[s.GetAnnotations()[podset.AnnotationSource]] {
			return true
		}
	}
	return l.allReady()
}

// endOrphan ends a running pod without a worker.
func (l *Loop) endOrphan(observed *lifecyclev1.PodStatus) {
	if pod := l.cfg.PodFromObserved(observed); pod != nil {
		grace := orphanGrace
		if left, ending := l.cfg.Endings.Remaining(pod.UID); ending {
			grace = left // an earlier process had begun to end it with a known grace period
		}
		l.cfg.Logger.Info("stopping a pod that runs and is named by no source",
			telemetry.KeyPod, pod.Namespace+"/"+pod.Name, telemetry.KeyPodUID, string(pod.UID), telemetry.KeyGracePeriod, grace)
		l.cfg.Metrics.orphanFound()
		l.cfg.Store.SetPod(pod, "", "")
		l.cfg.Workers.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, &podworkers.End{Removed: true, Grace: &grace})
	}
}

// sweep periodically sends the pods that have files to the loop.
func (l *Loop) sweep(ctx context.Context) error {
	if l.cfg.Leftovers == nil {
		return nil
	}
	ticker := l.cfg.Clock.NewTicker(sweepPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
		pods, err := l.cfg.Leftovers()
		if err != nil {
			l.cfg.Logger.Warn("cannot list the directories of pods; files of pods that are gone stay", telemetry.KeyError, err)
			continue
		}
		select {
		case l.leftovers <- pods:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// handleLeftovers removes the files of pods that neither a source nor the runtime has, such as those of a process that
// was killed before it removed them. The pod's worker removes them, so that a pod that comes back does not lose its
// files.
func (l *Loop) handleLeftovers(pods []*v1.Pod) {
	if !l.isOpen() || !l.allReady() {
		return
	}
	for _, pod := range pods {
		if l.cfg.Store.Has(pod.UID) || l.cfg.Workers.Has(pod.UID) || l.cfg.Store.Observed(pod.UID) != nil {
			continue
		}
		l.cfg.Logger.Info("removing the files of a pod that is gone", telemetry.KeyPod, pod.Namespace+"/"+pod.Name,
			telemetry.KeyPodUID, string(pod.UID))
		l.cfg.Workers.Want(pod, podworkers.Cause{Kind: podworkers.CauseDue}, &podworkers.End{Removed: true})
	}
}

// startUnknown dispatches the desired pods that have no worker, whatever the reason.
func (l *Loop) startUnknown() {
	for _, uid := range l.oldestFirst(maps.Keys(l.desired)) {
		if d := l.desired[uid]; !d.refused && !l.cfg.Workers.Has(uid) {
			l.dispatch(uid, podset.Add, d.traceparent)
		}
	}
}

// forgetEviction removes the eviction of a pod, so that the pod is started if a source names it again. The eviction
// does not count from now on, even before it is removed from the disk.
func (l *Loop) forgetEviction(uid types.UID) {
	if _, known := l.cfg.Evictions.Get(uid); !known && !l.recording[uid] && l.cfg.Evictions.Unread() == nil {
		delete(l.forgotten, uid)
		return
	}
	l.forgotten[uid] = true
	if l.recording[uid] {
		return // the end of the present write calls this again
	}
	l.recording[uid] = true
	l.runIO(eventHousekeeping, func(context.Context) func() {
		l.cfg.Evictions.Delete(uid)
		return func() {
			delete(l.recording, uid)
			delete(l.forgotten, uid)
		}
	})
}

// forgetEvictions removes the evictions of pods that were removed while this process did not run.
func (l *Loop) forgetEvictions() {
	for _, uid := range l.cfg.Evictions.UIDs() {
		if l.desired[uid] == nil || l.forgotten[uid] {
			l.forgetEviction(uid)
		}
	}
}

// forgetEndings removes the recorded ends of pods that ended while this process did not run.
func (l *Loop) forgetEndings() {
	var over []types.UID
	for _, uid := range l.cfg.Endings.UIDs() {
		if l.desired[uid] == nil && !l.cfg.Workers.Has(uid) && l.cfg.Store.Observed(uid) == nil {
			over = append(over, uid)
		}
	}
	if len(over) == 0 || l.forgettingEndings {
		return
	}
	l.forgettingEndings = true
	l.runIO(eventHousekeeping, func(context.Context) func() {
		for _, uid := range over {
			if err := l.cfg.Endings.Forget(uid); err != nil {
				l.cfg.Logger.Warn("cannot remove the file of the grace period of a pod that has ended; retrying", telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
			}
		}
		return func() { l.forgettingEndings = false }
	})
}

// oldestFirst returns the pods by the time of their creation, and those that are not desired last.
func (l *Loop) oldestFirst(pods iter.Seq[types.UID]) []types.UID {
	created := func(uid types.UID) *v1.Pod {
		if d := l.desired[uid]; d != nil {
			return d.pod
		}
		return nil
	}
	return slices.SortedFunc(pods, func(a, b types.UID) int {
		p, q := created(a), created(b)
		switch {
		case p == nil && q == nil:
			return cmp.Compare(a, b)
		case p == nil:
			return 1
		case q == nil:
			return -1
		}
		return cmp.Or(p.CreationTimestamp.Compare(q.CreationTimestamp.Time), cmp.Compare(a, b))
	})
}
