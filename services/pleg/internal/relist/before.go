package relist

import "github.com/quartet-node/quartet/services/pleg/internal/record"

// restore puts on record what was told before this process. It is called once, before anything is observed.
func (r *Relister) restore() {
	before, known := r.cfg.Told.Before()
	r.remembers = known
	for uid, told := range before {
		r.pods[uid] = &pod{record: record.Restore(told)}
	}
	r.cfg.Told.Begin(r.cfg.Events.Token())
}

// sinceBefore notes of a pod that is looked at for the first time that it was not there when this process began to be away, so
// that all that has happened to it since is told. Called with mu held.
func (r *Relister) sinceBefore(p *pod) {
	if r.remembers && !r.isSynced() && p.record.Status == nil && !p.record.Restored() {
		p.record = record.Restore(record.Told{})
	}
}

// isSynced tells whether the first relist has finished.
func (r *Relister) isSynced() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}
