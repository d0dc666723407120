package loop

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// The reason and message of a pod that exceeds activeDeadlineSeconds, in the kubelet's words.
const (
	reasonDeadline  = "DeadlineExceeded"
	messageDeadline = "Pod was active on the node longer than the specified deadline"
)

// endOverdue ends the pods that have been active for longer than activeDeadlineSeconds since status.startTime. They are
// Failed, and not started again as long as their source names them.
func (l *Loop) endOverdue() {
	for uid, d := range l.desired {
		limit := d.pod.Spec.ActiveDeadlineSeconds
		if limit == nil || d.refused || d.pod.DeletionTimestamp != nil {
			continue
		}
		start := l.cfg.Store.ActiveSince(uid)
		if start.IsZero() || l.cfg.Clock.Since(start) < time.Duration(*limit)*time.Second {
			continue
		}
		if _, evicted := l.evicted(uid); !evicted {
			l.endForGood(uid, d.pod, podstore.Eviction{Reason: reasonDeadline, Message: messageDeadline})
		}
	}
}

// endForGood ends a pod that its source still names. The reason is on disk by then, unless the disk is full or hangs.
func (l *Loop) endForGood(uid types.UID, pod *v1.Pod, why podstore.Eviction) {
	if l.recording[uid] {
		return // housekeeping tries again
	}
	l.recording[uid] = true
	l.runIO(eventHousekeeping, func(context.Context) func() {
		l.cfg.Evictions.Put(uid, why)
		return func() {
			delete(l.recording, uid)
			if l.forgotten[uid] || l.desired[uid] == nil {
				l.forgetEviction(uid) // its source does not name it any more
				return
			}
			l.endRecorded(uid, pod, why)
		}
	})
}

// endRecorded ends a pod whose reason is in the book.
func (l *Loop) endRecorded(uid types.UID, pod *v1.Pod, why podstore.Eviction) {
	if err := l.cfg.Store.Evict(uid, why); err != nil {
		l.cfg.Logger.Error("cannot find a pod that is to be ended", telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
	}
	l.cfg.Logger.Info("ending a pod for good", telemetry.KeyPod, pod.Namespace+"/"+pod.Name, telemetry.KeyPodUID,
		string(uid), telemetry.KeyReason, why.Reason)
	l.cfg.PodEvents.Normal(context.Background(), pod, "", why.Reason, why.Message)
	l.cfg.Workers.End(uid, podworkers.Cause{Kind: podworkers.CauseConfig}, podworkers.End{})
}
