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

// orphanGrace is how many seconds the containers of a pod have that nobody wants and whose spec nobody knows.
const orphanGrace int64 = 1

// sweepPeriod is how often the folders of pods are looked through for those of pods that are gone: it reads two folders.
const sweepPeriod = 10 * time.Second

// housekeep cleans up. It removes nothing before every source has spoken and pleg's snapshot is in.
func (l *Loop) housekeep() {
	begun := l.cfg.Clock.Now()
	l.show()
	l.tellWaiting()
	l.cfg.Workers.Tidy()
	if l.isOpen() {
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

// endOrphans stops what runs and is named by no source.
func (l *Loop) endOrphans() {
	for _, observed := range l.cfg.Store.Unknown() {
		if !l.cfg.Workers.Has(types.UID(observed.GetUid())) {
			l.endOrphan(observed)
		}
	}
}

// isOrphan tells whether what runs is named by no source for certain: its own source has spoken, or every one has.
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

// endOrphan stops a pod that runs and has no worker.
func (l *Loop) endOrphan(observed *lifecyclev1.PodStatus) {
	if pod := l.cfg.PodFromObserved(observed); pod != nil {
		grace := orphanGrace
		if left, ending := l.cfg.Endings.Remaining(pod.UID); ending {
			grace = left // a process before this one had begun, and knew how long it may take
		}
		l.cfg.Logger.Info("stopping a pod that runs and is named by no source",
			telemetry.KeyPod, pod.Namespace+"/"+pod.Name, telemetry.KeyPodUID, string(pod.UID), telemetry.KeyGracePeriod, grace)
		l.cfg.Metrics.orphanFound()
		l.cfg.Store.SetPod(pod, "", "")
		l.cfg.Workers.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, &podworkers.End{Removed: true, Grace: &grace})
	}
}

// sweep tells the loop, again and again, of which pods there are files.
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
			l.cfg.Logger.Warn("the pods' folders cannot be listed; what gone pods left in them stays", telemetry.KeyError, err)
			continue
		}
		select {
		case l.leftovers <- pods:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// handleLeftovers has what is left of pods removed that neither a source nor the runtime has: a process that was killed
// had made their files and nothing more, or had not come to remove them. The worker of each does it, so that no pod that
// comes back loses its files to it.
func (l *Loop) handleLeftovers(pods []*v1.Pod) {
	if !l.isOpen() || !l.allReady() {
		return
	}
	for _, pod := range pods {
		if l.cfg.Store.Has(pod.UID) || l.cfg.Workers.Has(pod.UID) || l.cfg.Store.Observed(pod.UID) != nil {
			continue
		}
		l.cfg.Logger.Info("removing the files of a pod that is gone", telemetry.KeyPod, pod.Namespace+"/"+pod.Name, telemetry.KeyPodUID, string(pod.UID))
		l.cfg.Workers.Want(pod, podworkers.Cause{Kind: podworkers.CauseDue}, &podworkers.End{Removed: true})
	}
}

// startUnknown hands out the pods that are wanted and, for whatever reason, have no worker.
func (l *Loop) startUnknown() {
	for _, uid := range l.oldestFirst(maps.Keys(l.desired)) {
		if d := l.desired[uid]; !d.refused && !l.cfg.Workers.Has(uid) {
			l.dispatch(uid, podset.Add, d.traceparent)
		}
	}
}

// forgetEviction lets a pod that was evicted be started again, should a source name it again. It counts as forgotten at once.
func (l *Loop) forgetEviction(uid types.UID) {
	if _, known := l.cfg.Evictions.Get(uid); !known && !l.recording[uid] {
		delete(l.forgotten, uid)
		return
	}
	l.forgotten[uid] = true
	if l.recording[uid] {
		return // what is being written comes back here
	}
	l.recording[uid] = true
	l.aside(eventHousekeeping, func(context.Context) func() {
		err := l.cfg.Evictions.Delete(uid)
		return func() {
			delete(l.recording, uid)
			if err == nil {
				delete(l.forgotten, uid)
				return
			}
			l.cfg.Logger.Warn("an eviction cannot be forgotten on disk; it is tried again", telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
		}
	})
}

// forgetEvictions forgets the evictions of pods that went while this process did not run.
func (l *Loop) forgetEvictions() {
	for _, uid := range l.cfg.Evictions.UIDs() {
		if l.desired[uid] == nil || l.forgotten[uid] {
			l.forgetEviction(uid)
		}
	}
}

// forgetEndings forgets the ends of pods that were over while this process did not run.
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
	l.aside(eventHousekeeping, func(context.Context) func() {
		for _, uid := range over {
			if err := l.cfg.Endings.Forget(uid); err != nil {
				l.cfg.Logger.Warn("cannot remove the file of the grace period of a pod that has ended; retrying", telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
			}
		}
		return func() { l.forgettingEndings = false }
	})
}

// oldestFirst returns the pods in the order of their creation, those that are not wanted last.
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
