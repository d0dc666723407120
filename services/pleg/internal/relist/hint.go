package relist

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

const (
	// hintMargin is how much older than what is known an event has to be to say nothing new.
	hintMargin = time.Second
	// removalTicks is for how many ticks a pod is inspected again of which something was said to be removed and is still
	// there: containerd says so of a sandbox just before it is.
	removalTicks = 5
	// startTicks is for how many ticks a pod is inspected again of which a container was made and is not started: no event tells
	// when its start fails.
	startTicks = 30
)

// moment is a point in time by both clocks: by the wall clock to compare with what the runtime says, by the boot clock, which
// nobody sets.
type moment struct {
	wall time.Time
	boot time.Duration
}

// later returns the later of two moments.
func later(a, b moment) moment {
	if b.boot > a.boot {
		return b
	}
	return a
}

// hinted is what the runtime's events have said of a pod since the beginning, each by when it came; zero is never.
type hinted struct {
	// any is when the last event came that may have said something new.
	any time.Duration
	// created is when something was made for the pod, until it was looked at.
	created time.Duration
	// starting is how many ticks are left to what was made to be started.
	starting int
	// removal is when the last event came that something was removed.
	removal time.Duration
	// removing has the ids of what was said to be removed and is still on record, with the ticks that are left to it.
	removing map[string]int
}

// Hint says that something has happened to a pod at a time by the wall clock; the zero time when it is not known. The pod
// is inspected as soon as may be, unless it has been observed since.
func (r *Relister) Hint(uid string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isNews(uid, at) {
		r.request(uid, false)
	}
}

// HintCreated says that something was made for a pod and has not been started. Nobody has to act on it, and an event of its
// own says when it is started, so the pod is inspected with the next tick, and only when nothing else has made that necessary.
func (r *Relister) HintCreated(uid string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isNews(uid, at) {
		h := &r.pod(uid).hinted
		h.created, h.starting = r.cfg.BootTime(), startTicks
	}
}

// HintRemoved says that the sandbox or container with an id was removed; uid is the pod's, or empty when it is not known. The
// pod is inspected as for Hint, and some more times if it is still there then.
func (r *Relister) HintRemoved(uid, id string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid == "" {
		if uid = r.owner(id); uid == "" {
			r.hintUnnamed(id, at)
			return
		}
	}
	if !r.isNews(uid, at) {
		return
	}
	p := r.pod(uid)
	p.hinted.removal = r.cfg.BootTime()
	if p.hinted.removing == nil {
		p.hinted.removing = map[string]int{}
	}
	p.hinted.removing[id] = removalTicks
	r.request(uid, false)
}

// HintAny says that something has happened to a pod that has, or had, a sandbox or container with this id. When no pod on
// record has it, everything is listed with the next tick.
func (r *Relister) HintAny(id string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid := r.owner(id); uid == "" {
		r.hintUnnamed(id, at)
	} else if r.isNews(uid, at) {
		r.request(uid, false)
	}
}

// hintUnnamed takes an event of something that is on no record. Called with mu held.
func (r *Relister) hintUnnamed(id string, at time.Time) {
	if r.settleByID(id, at) {
		return
	}
	if known := r.began(); !r.isOld(at, known) {
		r.suspect, r.events.unnamed = true, r.cfg.BootTime()
	}
}

// owner returns the UID of the pod that has a sandbox or container; empty when none on record has. Called with mu held.
func (r *Relister) owner(id string) string {
	for uid, p := range r.pods {
		if onRecord(p, id) {
			return uid
		}
	}
	return ""
}

func onRecord(p *pod, id string) bool { return has(p.record.Status, id) }

func has(s *lifecyclev1.PodStatus, id string) bool {
	return record.FindSandbox(s, id) != nil || record.FindContainer(s, id) != nil
}

// isNews takes note of an event about a pod, and tells whether it may say something that is not on record. Called with mu held.
func (r *Relister) isNews(uid string, at time.Time) bool {
	r.settle(uid, at)
	if r.isOld(at, r.known(r.pods[uid])) {
		return false
	}
	r.pod(uid).hinted.any = r.cfg.BootTime()
	return true
}

// isOld tells whether something that happened at a time by the wall clock was before what is known. When the clock was set in
// between, the two do not agree, and it may be news.
func (r *Relister) isOld(at time.Time, known moment) bool {
	ago := r.cfg.BootTime() - known.boot
	return !at.IsZero() && at.Add(hintMargin).Before(known.wall) && r.cfg.Clock.Since(at) > ago+hintMargin
}

// known returns as of when the record of a pod is what the runtime had; the zero moment when it may not be. Called with mu held.
func (r *Relister) known(p *pod) moment {
	switch {
	case p == nil:
		return r.began() // it was not there
	case p.failure != "", p.record.Status != nil && !p.record.Inspected():
		return moment{}
	case p.record.Status == nil:
		return p.matched
	}
	return later(p.matched, moment{p.record.Status.GetObservedAt().AsTime(), time.Duration(p.record.Status.GetObservedBoottimeNs())})
}

// began returns when the last full relist that finished began. Called with mu held.
func (r *Relister) began() moment { return moment{r.round.beganAt, r.round.beganBoot} }

// pod returns a pod, a new one when it is not on record. Called with mu held.
func (r *Relister) pod(uid string) *pod {
	p := r.pods[uid]
	if p == nil {
		p = &pod{matched: r.began()}
		r.pods[uid] = p
	}
	return p
}

// lookAgain asks for the inspections that events have asked for and that could wait. Called with mu held.
func (r *Relister) lookAgain() {
	for uid, p := range r.pods {
		h := &p.hinted
		again := h.created != 0 && r.known(p).boot < h.created
		h.created = 0
		if h.starting > 0 && !again {
			h.starting--
			again = isStarting(p.record.Status)
		}
		for id, left := range h.removing {
			if left == 0 || !onRecord(p, id) {
				delete(h.removing, id)
				continue
			}
			h.removing[id]--
			again = true
		}
		if again {
			r.request(uid, false)
		}
	}
}

// isStarting tells whether a container was made and has not been started.
func isStarting(s *lifecyclev1.PodStatus) bool {
	return slices.ContainsFunc(s.GetContainers(), func(c *lifecyclev1.Container) bool {
		return c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
	})
}

// momentOf is when something was listed.
func momentOf(boot int64, at *timestamppb.Timestamp) moment {
	return moment{at.AsTime(), time.Duration(boot)}
}
