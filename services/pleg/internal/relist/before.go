package relist

import "github.com/quartet-node/quartet/services/pleg/internal/record"

// restore restores the records of the previous process. It is called once, before any observation.
func (r *Relister) restore() {
	before, known := r.cfg.Journal.Before()
	r.remembers = known
	for uid, published := range before {
		r.pods[uid] = &pod{record: record.Restore(published)}
	}
	r.cfg.Journal.Begin(r.cfg.Events.Token())
}

// sinceBefore records that a pod that is observed for the first time did not exist at the end of the previous process,
// so that all its changes are published. The caller holds mu.
func (r *Relister) sinceBefore(p *pod) {
	if r.remembers && !r.isSynced() && p.record.Status == nil && !p.record.Restored() {
		p.record = record.Restore(record.Published{})
	}
}

// isSynced reports whether the first relist has finished.
func (r *Relister) isSynced() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}
