package loop

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/worker"
)

// orphanGrace is how many seconds the containers of a pod have that nobody wants and whose spec nobody knows.
const orphanGrace int64 = 1

// housekeep cleans up. It removes nothing before every source has spoken and pleg's snapshot is in.
func (l *Loop) housekeep() {
	begun := l.cfg.Clock.Now()
	l.show()
	l.tellWaiting()
	l.cfg.Workers.Tidy()
	if l.isOpen() {
		l.startUnknown()
		if l.allReady() {
			l.endOrphans()
			l.forgetEvictions()
		}
	}
	if took := l.cfg.Clock.Since(begun); took > housekeepingWarning {
		l.cfg.Logger.Warn("housekeeping held up the sync loop", telemetry.KeyDuration, took)
	}
}

// endOrphans stops what runs and is named by no source.
func (l *Loop) endOrphans() {
	for _, observed := range l.cfg.Store.Unknown() {
		pod := l.cfg.PodFromObserved(observed)
		if pod == nil || l.cfg.Workers.Has(pod.UID) {
			continue
		}
		l.cfg.Logger.Info("stopping a pod that runs and is named by no source",
			telemetry.KeyPod, pod.Namespace+"/"+pod.Name, telemetry.KeyPodUID, string(pod.UID), telemetry.KeyGracePeriod, orphanGrace)
		grace := orphanGrace
		l.cfg.Store.SetPod(pod, "", "")
		l.cfg.Workers.Want(pod, worker.Cause{Kind: worker.CauseConfig}, &worker.End{Removed: true, Grace: &grace})
	}
}

// startUnknown hands out the pods that are wanted and, for whatever reason, have no worker.
func (l *Loop) startUnknown() {
	for uid, d := range l.desired {
		if !l.cfg.Workers.Has(uid) {
			l.dispatch(uid, podset.Add, d.traceparent)
		}
	}
}

// forgetEviction lets a pod that was evicted be started again, should a source name it again.
func (l *Loop) forgetEviction(uid types.UID) {
	if err := l.cfg.Evictions.Delete(uid); err != nil {
		l.cfg.Logger.Warn("an eviction cannot be forgotten on disk; it is tried again", telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
	}
}

// forgetEvictions forgets the evictions of pods that went while this process did not run.
func (l *Loop) forgetEvictions() {
	for _, uid := range l.cfg.Evictions.UIDs() {
		if l.desired[uid] == nil {
			l.forgetEviction(uid)
		}
	}
}

// oldestFirst returns the pods in the order of their creation, those that are not wanted last.
func (l *Loop) oldestFirst(held map[types.UID]worker.Cause) []types.UID {
	created := func(uid types.UID) *v1.Pod {
		if d := l.desired[uid]; d != nil {
			return d.pod
		}
		return nil
	}
	return slices.SortedFunc(maps.Keys(held), func(a, b types.UID) int {
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
