package relist

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
)

const (
	// hintMargin is the age relative to the record from which an event is outdated.
	hintMargin = time.Second
	// removalTicks is the number of ticks for which a pod is inspected again if a removed object still exists: containerd
	// reports the removal of a sandbox just before it happens.
	removalTicks = 5
	// startTicks is the number of ticks for which a pod is inspected again if a container was created and not started,
	// because there is no event for a failed start.
	startTicks = 30
)

// moment is a point in time on both clocks: the wall clock, to compare with the runtime's times, and the boot clock,
// which cannot be set.
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

// hinted holds the boot times of the runtime's events about a pod; zero means never.
type hinted struct {
	// any is the time of the last event that may be new.
	any time.Duration
	// created is the time at which something was created for the pod, until it is inspected.
	created time.Duration
	// starting is the number of remaining ticks for the start of a created container.
	starting int
	// removal is the time of the last removal event.
	removal time.Duration
	// removing maps the IDs of removed objects that are still recorded to their remaining ticks.
	removing map[string]int
}

// Hint reports a change of a pod at a wall clock time; zero if unknown. The pod is inspected as soon as possible,
// unless it has been observed since.
func (r *Relister) Hint(uid string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isNews(uid, at) {
		r.request(uid, false)
	}
}

// HintCreated reports that a sandbox was created or started for a pod, or a container was created and not started.
// Nothing has to act on it, and the start of a container has its own event, so the pod is inspected with the next tick,
// unless it is inspected before.
func (r *Relister) HintCreated(uid string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isNews(uid, at) {
		h := &r.pod(uid).hinted
		h.created, h.starting = r.cfg.BootTime(), startTicks
	}
}

// HintRemoved reports that the sandbox or container with an ID was removed; uid is that of the pod, or empty if
// unknown. The pod is inspected as for Hint, and again if the object still exists then.
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

// HintAny reports a change of a pod that has, or had, a sandbox or container with this ID. If no recorded pod has it,
// everything is listed with the next tick.
func (r *Relister) HintAny(id string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid := r.owner(id); uid == "" {
		r.hintUnnamed(id, at)
	} else if r.isNews(uid, at) {
		r.request(uid, false)
	}
}

// hintUnnamed handles an event of an unrecorded object. The caller holds mu.
func (r *Relister) hintUnnamed(id string, at time.Time) {
	if r.settleByID(id, at) {
		return
	}
	if known := r.began(); !r.isOld(at, known) {
		r.suspect, r.events.unnamed = true, r.cfg.BootTime()
	}
}

// owner returns the UID of the pod with a sandbox or container; empty if no recorded pod has it. The caller holds mu.
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
	return inspection.FindSandbox(s, id) != nil || inspection.FindContainer(s, id) != nil
}

// isNews records an event about a pod, and reports whether it may be new relative to the record. The caller holds mu.
func (r *Relister) isNews(uid string, at time.Time) bool {
	r.settle(uid, at)
	if r.isOld(at, r.known(r.pods[uid])) {
		return false
	}
	r.pod(uid).hinted.any = r.cfg.BootTime()
	return true
}

// isOld reports whether a change at a wall clock time precedes the record. If the clock was set in between, the change
// counts as new.
func (r *Relister) isOld(at time.Time, known moment) bool {
	ago := r.cfg.BootTime() - known.boot
	return !at.IsZero() && at.Add(hintMargin).Before(known.wall) && r.cfg.Clock.Since(at) > ago+hintMargin
}

// known returns the moment at which the record of a pod was up to date; zero if it may not be. The caller holds mu.
func (r *Relister) known(p *pod) moment {
	switch {
	case p == nil:
		return r.began() // it did not exist
	case p.failure != "", p.record.Status != nil && !p.record.Inspected():
		return moment{}
	case p.record.Status == nil:
		return p.matched
	}
	return later(
		p.matched,
		moment{p.record.Status.GetObservedAt().AsTime(), time.Duration(p.record.Status.GetObservedBoottimeNs())},
	)
}

// began returns the start of the last finished full relist. The caller holds mu.
func (r *Relister) began() moment { return moment{r.round.beganAt, r.round.beganBoot} }

// pod returns the record of a pod, and creates it if necessary. The caller holds mu.
func (r *Relister) pod(uid string) *pod {
	p := r.pods[uid]
	if p == nil {
		p = &pod{matched: r.began()}
		r.pods[uid] = p
	}
	return p
}

// lookAgain requests the delayed inspections that events have caused. The caller holds mu.
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

// isStarting reports whether a container was created and has not been started.
func isStarting(s *lifecyclev1.PodStatus) bool {
	return slices.ContainsFunc(s.GetContainers(), func(c *lifecyclev1.Container) bool {
		return c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
	})
}

// momentOf returns the moment of a list.
func momentOf(boot int64, at *timestamppb.Timestamp) moment {
	return moment{at.AsTime(), time.Duration(boot)}
}
