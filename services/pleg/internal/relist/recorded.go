package relist

import (
	"context"
	"maps"
	"slices"
	"time"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
)

// Recorded returns the record of each pod, for a recording of the calls that end after it was called. Each is taken
// when the inspection of the pod that runs now has ended, and the lists of a relist that runs now. It waits for them at
// most until an inspection is overdue. So the record has the results of all inspections and lists of which a call ended
// earlier. It fails with the error of ctx.
func (r *Relister) Recorded(ctx context.Context) ([]*debugv1.PLEGRecord, error) {
	r.mu.Lock()
	head := &debugv1.PLEGRecord{
		TakenBoottimeNs: int64(r.cfg.BootTime()), Synced: r.isSynced(), Continues: r.remembers,
	}
	uids := slices.Sorted(maps.Keys(r.pods))
	var running []<-chan struct{}
	if r.round.listed != nil {
		running = append(running, r.round.listed)
	}
	for _, p := range r.pods {
		if p.running != nil {
			running = append(running, p.running.done)
		}
	}
	r.mu.Unlock()
	limit := r.cfg.Clock.NewTimer(overdue)
	defer limit.Stop()
	late := false
	for _, done := range running {
		if late {
			break
		}
		select {
		case <-done:
		case <-limit.C():
			late = true
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	all := []*debugv1.PLEGRecord{head}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uid := range uids {
		one := &debugv1.PLEGRecord{
			TakenBoottimeNs: int64(r.cfg.BootTime()), Synced: r.isSynced(), Continues: r.remembers,
			Pod: &debugv1.PLEGRecordPod{Uid: uid}, // one that has gone meanwhile
		}
		if p := r.pods[uid]; p != nil {
			one.Pod = p.record.Recorded(uid)
			one.Pod.Failed = p.failure != ""
			if p.running != nil {
				one.TakenBoottimeNs = int64(p.running.began)
			}
		}
		all = append(all, one)
	}
	return all, nil
}

// SyncedAt returns the boot time at which the first relist finished; 0 before that.
func (r *Relister) SyncedAt() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.round.syncedBoot
}
