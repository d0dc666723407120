package relist

import (
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/pleg/internal/streamhealth"
)

const (
	// EventedPeriod is the interval of full relists while the runtime's events are reliable.
	EventedPeriod = 300 * time.Second
	// QuietPeriod is the interval if no event has arrived for that long: the CRI has no bookmarks that distinguish an idle
	// stream from a dead one, so lists must. They cost two calls.
	QuietPeriod = 30 * time.Second
	// graceTicks is the number of ticks within which the event of a found change may still arrive. They are ticks, and not
	// time, because after a pause of this process or the machine the event is still to be read.
	graceTicks = 5
	// early is how long before a removal its event may arrive.
	early = 5 * time.Second
)

// events is the reliability of the runtime's event stream.
type events struct {
	streamhealth.Stream
	// since is the boot time from which every change has an event; 0 while there is no stream.
	since time.Duration
	// lastEventAt is the time of the runtime's last event, if known: the stream was alive then.
	lastEventAt time.Time
	// unnamed is the boot time of the last event whose pod is unknown.
	unnamed time.Duration
	// doubts maps pods to changes that were found before their event. Its size is bounded by the pods that have changed
	// within graceTicks.
	doubts map[string]*doubt
	// hastened is the time at which full relists became due every second.
	hastened time.Time
	// unreliable has capacity one: it requests a new stream.
	unreliable chan struct{}
}

// doubt is a found change without an event so far.
type doubt struct {
	// before is the previous status of the pod, and known its time.
	before *lifecyclev1.PodStatus
	known  moment
	// ticks is the number of ticks until the event counts as missing.
	ticks int
}

// SetEvented declares whether there is a stream of the runtime's events for every change from now on. A change causes a
// relist at once, because changes in between have no events.
func (r *Relister) SetEvented(evented bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &r.events
	if evented == (e.since != 0) {
		return
	}
	relied := e.Relied()
	if evented {
		e.Open()
		e.since = r.cfg.BootTime()
	} else {
		e.Close()
		e.since = 0
		clear(e.doubts)
	}
	r.modeChanged(relied)
	r.wake()
}

// modeChanged records when relists have become due every second. The caller holds mu.
func (r *Relister) modeChanged(relied bool) {
	if relied && !r.events.Relied() {
		r.events.hastened = r.cfg.Clock.Now()
	}
}

// Heard records the arrival of an event that the runtime created at a wall clock time, or zero if unknown: the stream
// was alive then.
func (r *Relister) Heard(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	made := r.cfg.Clock.Now()
	if !at.IsZero() {
		made = made.Add(-max(0, r.cfg.Clock.Since(at)))
	}
	if made.After(r.events.lastEventAt) {
		r.events.lastEventAt = made
	}
}

// Unreliable signals that the stream of events has missed a change, and must be opened again.
func (r *Relister) Unreliable() <-chan struct{} { return r.events.unreliable }

// compare checks whether an observed change was announced by an event, before it is recorded. The caller holds mu.
func (r *Relister) compare(uid string, p *pod, seen *lifecyclev1.PodStatus) {
	e, known := &r.events, r.known(p)
	if e.since == 0 || known.boot < e.since || !streamhealth.Announceable(p.record.Status, seen) {
		return
	}
	switch {
	case p.hinted.any > known.boot, e.unnamed > known.boot, p.hinted.removal > known.boot-early:
		e.Announced()
	case e.doubts[uid] == nil:
		e.doubts[uid] = &doubt{before: p.record.Status, known: known, ticks: graceTicks}
	}
}

// settle matches an event of a pod with a found change. The caller holds mu.
func (r *Relister) settle(uid string, at time.Time) {
	if d := r.events.doubts[uid]; d != nil && !r.isOld(at, d.known) {
		delete(r.events.doubts, uid)
		r.events.Announced()
	}
}

// settleByID does so for an event of a container or sandbox that is not recorded any more, and reports whether it found
// a pod. The caller holds mu.
func (r *Relister) settleByID(id string, at time.Time) bool {
	for uid, d := range r.events.doubts {
		if has(d.before, id) {
			r.settle(uid, at)
			return true
		}
	}
	return false
}

// review judges the stream of events by the found changes. The caller holds mu.
func (r *Relister) review() {
	e, now := &r.events, r.cfg.Clock.Now()
	for uid, d := range e.doubts {
		if d.ticks--; d.ticks > 0 {
			continue
		}
		delete(e.doubts, uid)
		relied := e.Relied()
		probation := e.Unannounced(now)
		r.modeChanged(relied)
		r.cfg.Metrics.unannounced.Inc()
		if relied {
			r.cfg.Logger.Warn(
				"a pod has changed without an event of the runtime; relisting every second until its events are reliable again",
				telemetry.KeyPodUID, uid, telemetry.KeyRetryAfter, probation)
		}
		select {
		case e.unreliable <- struct{}{}:
		default:
		}
	}
	if e.Review(now) {
		r.cfg.Logger.Info("the runtime's events are reliable again; full relists are rare from now on")
	}
}

// tick does the periodic work, and reports whether a full relist is due.
func (r *Relister) tick() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.review()
	r.lookAgain()
	return !r.events.Relied() || r.suspect || r.round.err != nil || r.cfg.Clock.Since(r.round.beganAt) >= r.period()
}

// period returns the interval of full relists while events are reliable. The caller holds mu.
func (r *Relister) period() time.Duration {
	if r.cfg.Clock.Since(r.events.lastEventAt) >= QuietPeriod {
		return QuietPeriod
	}
	return EventedPeriod
}
