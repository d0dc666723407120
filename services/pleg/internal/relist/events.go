package relist

import (
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/pleg/internal/streamhealth"
)

const (
	// EventedPeriod separates full relists while the runtime's events say what to look at.
	EventedPeriod = 300 * time.Second
	// QuietPeriod separates them when no event has come for as long: the CRI has no bookmarks that tell a stream on which
	// nothing happens from one that is dead, so the lists have to. They cost two calls.
	QuietPeriod = 30 * time.Second
	// graceTicks is for how many ticks the event of a change may be under way that an inspection has found. Ticks, not time:
	// when this process was stopped, or the machine slept, the event is still to be read.
	graceTicks = 5
	// early is how long before a removal the event of it may come.
	early = 5 * time.Second
)

// events is how far the runtime's event stream can be relied on.
type events struct {
	streamhealth.Stream
	// since is the boot clock from when on every change is told by an event; 0 while there is no stream.
	since time.Duration
	// heard is when the runtime made the last event, as far as it is known: the stream was alive then.
	heard time.Time
	// unnamed is the boot clock when the last event came that nobody could tell the pod of.
	unnamed time.Duration
	// doubts has the changes, by pod, that were found and not announced yet. It is as large as the pods that have changed
	// within graceTicks.
	doubts map[string]*doubt
	// hastened is when full relists came to be due every second.
	hastened time.Time
	// unreliable has room for one: that a stream is to be made anew.
	unreliable chan struct{}
}

// doubt is a change that was found and that no event has announced yet.
type doubt struct {
	// before is what was known of the pod, known when it was so.
	before *lifecyclev1.PodStatus
	known  moment
	// ticks is how many are left until the event is missing.
	ticks int
}

// SetEvented says whether there is a stream of the runtime's events that tells of every change from now on. A change of it makes
// a relist at once: what happened in between was told by nobody.
func (r *Relister) SetEvented(evented bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &r.events
	if evented == (e.since != 0) {
		return
	}
	was := e.Relied()
	if evented {
		e.Open()
		e.since = r.cfg.BootTime()
	} else {
		e.Close()
		e.since = 0
		clear(e.doubts)
	}
	r.modeChanged(was)
	r.wake()
}

// modeChanged notes when relists have become due every second. Called with mu held.
func (r *Relister) modeChanged(was bool) {
	if was && !r.events.Relied() {
		r.events.hastened = r.cfg.Clock.Now()
	}
}

// Heard says that an event has come which the runtime made at a time by the wall clock, the zero time when it does not say: the
// stream was alive then, whatever it was about.
func (r *Relister) Heard(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	made := r.cfg.Clock.Now()
	if !at.IsZero() {
		made = made.Add(-max(0, r.cfg.Clock.Since(at)))
	}
	if made.After(r.events.heard) {
		r.events.heard = made
	}
}

// Unreliable tells, once each time, that the stream of events has not told of a change, and is to be made anew.
func (r *Relister) Unreliable() <-chan struct{} { return r.events.unreliable }

// compare notes whether what was seen of a pod was announced, before it is put on record. Called with mu held.
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

// settle takes an event about a pod for that of the change that was found of it. Called with mu held.
func (r *Relister) settle(uid string, at time.Time) {
	if d := r.events.doubts[uid]; d != nil && !r.isOld(at, d.known) {
		delete(r.events.doubts, uid)
		r.events.Announced()
	}
}

// settleByID does so for an event of something that is on record no more, and tells whether a pod had it. Called with mu held.
func (r *Relister) settleByID(id string, at time.Time) bool {
	for uid, d := range r.events.doubts {
		if has(d.before, id) {
			r.settle(uid, at)
			return true
		}
	}
	return false
}

// review judges the stream of events by the changes that were found. Called with mu held.
func (r *Relister) review() {
	e, now := &r.events, r.cfg.Clock.Now()
	for uid, d := range e.doubts {
		if d.ticks--; d.ticks > 0 {
			continue
		}
		delete(e.doubts, uid)
		was := e.Relied()
		probation := e.Unannounced(now)
		r.modeChanged(was)
		r.cfg.Metrics.unannounced.Inc()
		if was {
			r.cfg.Logger.Warn("a pod has changed and no event of the runtime has said so, relisting every second until its events prove right",
				telemetry.KeyPodUID, uid, telemetry.KeyRetryAfter, probation)
		}
		select {
		case e.unreliable <- struct{}{}:
		default:
		}
	}
	if e.Review(now) {
		r.cfg.Logger.Info("the runtime's events have proved right, full relists are rare from now on")
	}
}

// tick does what is due with each tick, and tells whether it is time for a full relist.
func (r *Relister) tick() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.review()
	r.lookAgain()
	return !r.events.Relied() || r.suspect || r.round.err != nil || r.cfg.Clock.Since(r.round.beganAt) >= r.period()
}

// period separates full relists while events are relied on. Called with mu held.
func (r *Relister) period() time.Duration {
	if r.cfg.Clock.Since(r.events.heard) >= QuietPeriod {
		return QuietPeriod
	}
	return EventedPeriod
}
