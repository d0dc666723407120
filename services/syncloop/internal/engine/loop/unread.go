package loop

import (
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

// mayBeEvicted reports whether a pod must not be started, because it may be in the book of evictions, which cannot be
// read. A pod that runs goes on, unless an earlier process was ending it.
func (l *Loop) mayBeEvicted(uid types.UID, d *desiredPod) bool {
	problem := l.cfg.Evictions.Unread()
	if problem == nil || l.cfg.Workers.Has(uid) {
		return false
	}
	if podworkers.Runs(l.cfg.Store.Observed(uid)) {
		if _, ending := l.cfg.Endings.Remaining(uid); !ending {
			return false
		}
		cause := podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: d.traceparent}
		l.cfg.Workers.Want(d.pod, cause, &podworkers.End{Removed: true})
		return true
	}
	l.cfg.Store.Synced(uid, podworkers.SyncReport{ReasonsKnown: true, Wait: podstatus.Reason{
		Reason: podstatus.ReasonRecord, Message: "it is not known whether the pod was evicted: " + problem.Error(),
	}})
	return true
}

// readResizes reads the records of resizes that could not be read, outside of the loop's goroutine.
func (l *Loop) readResizes() {
	if l.readingResizes || l.cfg.Resizes.Problem() == nil {
		return
	}
	l.readingResizes = true
	l.runIO(eventHousekeeping, func(context.Context) func() {
		read := l.cfg.Resizes.ReadAgain(l.cfg.Logger)
		return func() {
			l.readingResizes = false
			l.takeResizes(read)
		}
	})
}

// takeResizes gives pods what their records allocate to them.
func (l *Loop) takeResizes(pods []types.UID) {
	for _, uid := range l.oldestFirst(slices.Values(pods)) {
		d := l.desired[uid]
		if d == nil {
			l.forgetResize(uid)
			continue
		}
		l.saveResize(uid, nil)
		if d.allocated && d.promise == nil && d.pod.DeletionTimestamp == nil && !l.cfg.Workers.Ending(uid) {
			d.allocated = false
			l.dispatch(uid, podset.Update, d.traceparent)
		}
	}
}

// takeEvictions ends the evicted pods among those that run, after the book of evictions was read at last. Housekeeping
// starts the others.
func (l *Loop) takeEvictions() {
	unread := l.cfg.Evictions.Unread() != nil
	if unread || !l.unread {
		l.unread = unread
		return
	}
	l.unread = false
	for _, uid := range l.oldestFirst(maps.Keys(l.desired)) {
		if l.cfg.Workers.Ending(uid) { // as an earlier process did; the worker does not know why
			l.showEviction(uid)
			continue
		}
		if _, evicted := l.evicted(uid); evicted {
			l.dispatch(uid, podset.Update, l.desired[uid].traceparent)
		}
	}
}
