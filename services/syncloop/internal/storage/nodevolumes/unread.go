package nodevolumes

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// readAgain is the time after which records that could not be listed are tried again.
	readAgain = 10 * time.Second
	// listLimit is how long a process waits for the list. A healthy disk takes milliseconds.
	listLimit = 2 * time.Second
)

// loaded is the result of reading the records.
type loaded struct {
	all map[string]stored
	err error
}

// Unread returns why the records could not be listed; nil if they were.
func (v *Volumes) Unread() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.unread
}

// load reads the records. It waits for a disk that hangs for a moment only, and for the same answer at the next call.
// Only New and Run call it.
func (v *Volumes) load() {
	if v.loading == nil {
		answer := make(chan loaded, 1)
		v.loading = answer
		go func() {
			all, err := v.disk.load()
			answer <- loaded{all, err}
		}()
	}
	timer := time.NewTimer(listLimit)
	defer timer.Stop()
	select {
	case answer := <-v.loading:
		v.loading = nil
		v.use(answer.all, answer.err)
	case <-timer.C:
		v.use(nil, statedir.ErrHangs)
	}
}

// use replaces the entries by the records on disk, or notes why they are not known.
func (v *Volumes) use(all map[string]stored, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.unread = fmt.Errorf("the records of the volumes of claims cannot be listed: %w", err)
		return
	}
	v.unread = nil
	asked := v.entries // by claims that may have one of the volumes
	v.entries = map[string]*entry{}
	for name, s := range all {
		v.entries[name] = &entry{name: name, claim: *s.record.PV.Spec.ClaimRef, rec: s.record, released: s.released}
	}
	for _, e := range asked {
		v.ask(e)
	}
}

// ask gives a claim that has asked for a volume the one that it has; otherwise a name for another one. The caller holds
// mu.
func (v *Volumes) ask(by *entry) {
	for _, e := range v.entries {
		if e.claim.UID == by.claim.UID && !e.released {
			e.immediate, e.wanted = by.immediate, by.wanted
			return
		}
	}
	name := by.name
	if v.entries[name] != nil {
		name = "pvc-" + uuid.NewString()
	}
	v.entries[name] = &entry{name: name, claim: by.claim, immediate: by.immediate, wanted: by.wanted}
}

// reload reads records that could not be listed, and reports whether they could be now. The claims are told.
func (v *Volumes) reload() bool {
	v.load()
	if v.Unread() != nil {
		return false
	}
	v.cfg.Logger.Info("the records of the volumes of claims can be listed again")
	var claims []v1.ObjectReference
	v.mu.Lock()
	for _, e := range v.entries {
		if !e.released {
			claims = append(claims, e.claim)
		}
	}
	v.mu.Unlock()
	for _, claim := range claims {
		v.cfg.Changed(claim.Namespace, claim.Name)
	}
	return true
}
