package prober

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// firstGap is how soon a container that has just started is asked for the second time; the gap then doubles.
const firstGap = time.Second

// resumeSpread is over how long the first calls after a restart of this process are spread of containers that are not ready or
// not started: somebody waits for them. Those of all others are spread over their period.
const resumeSpread = time.Second

// timing is what a probe's spec says of when it is run and what its answers count.
type timing struct {
	// delay is how long after the container's start it is not run.
	delay time.Duration
	// period is how often it is run.
	period time.Duration
	// successes and failures are how many answers in a row make that the result.
	successes, failures int
}

// timingOf reads a spec. What it leaves out is the API's default.
func timingOf(spec *v1.Probe) timing {
	or := func(value, otherwise int32) int32 {
		if value <= 0 {
			return otherwise
		}
		return value
	}
	return timing{
		delay: time.Duration(max(spec.InitialDelaySeconds, 0)) * time.Second, period: time.Duration(or(spec.PeriodSeconds, 10)) * time.Second,
		successes: int(or(spec.SuccessThreshold, 1)), failures: int(or(spec.FailureThreshold, 3)),
	}
}

// machine is one probe of one container, from when that runs until it ends. It decides when the probe is run next and what its
// answers come to, and knows no clock: every time comes in.
//
//	gated ──── the startup probe has succeeded ────▶ asked ──── a startup probe has a result, or ────▶ held
//	                                                  ▲  │      a liveness probe has failed
//	                                                  └──┘
//
// A readiness probe fails until it has succeeded, a liveness probe holds until it has failed, and a startup probe has no result
// before its first.
//
// In the first period of a container that has just started, startup and readiness are asked more often, after 1, 2, 4, … s: a
// server that needs a second is Ready after two and not after the default period of ten. A startup probe's failures do not count
// there, so the container has failureThreshold whole periods to start. A liveness probe without initialDelaySeconds is first run
// one period after the start, since whoever has just begun may not answer yet, and is not to be killed for it.
type machine struct {
	kind   probecalls.Kind
	timing timing
	// result is what the probe has come to.
	result decide.ProbeResult
	// last is the last answer that counts, and run how many of it came in a row.
	last probecalls.Outcome
	run  int
	// gated is true until the container's startup probe has succeeded, held once nothing more is to be asked of this container.
	gated, held bool
	// from is since when the probe may be run.
	from time.Time
	// next is when it is run next; it says nothing while the probe is gated or held.
	next time.Time
}

// beginning is what is known of a container whose probe begins.
type beginning struct {
	now time.Time
	// startedAt is when the container was started, by the runtime's clock, which may be set.
	startedAt time.Time
	// kept is the result that an earlier process had, Unknown for none.
	kept decide.ProbeResult
	// gated is true when the container has a startup probe that has not succeeded.
	gated bool
	// resumed is true when the container was started before this process was.
	resumed bool
	// spread is between 0 and 1, another for each probe.
	spread float64
}

// begin returns the machine of a probe whose container runs.
func begin(kind probecalls.Kind, t timing, b beginning) machine {
	m := machine{kind: kind, timing: t, result: b.kept, gated: b.gated && kind != probecalls.Startup}
	if b.kept == decide.Unknown {
		m.result = initial(kind)
	}
	m.held = ends(kind, b.kept)
	delay := t.delay
	if delay == 0 && kind == probecalls.Liveness {
		delay = t.period
	}
	// Of a clock that was set the longest harm is the delay once more.
	age := max(b.now.Sub(b.startedAt), 0)
	m.from = b.now.Add(delay - age)
	m.next = m.from
	if !b.resumed || m.from.After(b.now) {
		return m
	}
	window := t.period
	if kind != probecalls.Liveness && m.result != decide.Success {
		window = min(window, resumeSpread)
	}
	m.next = b.now.Add(time.Duration(b.spread * float64(window)))
	return m
}

// initial is the result of a probe that has none yet.
func initial(kind probecalls.Kind) decide.ProbeResult {
	switch kind {
	case probecalls.Readiness:
		return decide.Failure
	case probecalls.Liveness:
		return decide.Success
	case probecalls.Startup:
	}
	return decide.Unknown
}

// ends tells whether nothing more is asked of a container after a result: it has started, or is about to be killed.
func ends(kind probecalls.Kind, result decide.ProbeResult) bool {
	return kind == probecalls.Startup && result != decide.Unknown || kind == probecalls.Liveness && result == decide.Failure
}

// waits tells whether nothing is due.
func (m *machine) waits() bool { return m.gated || m.held }

// open takes in that the startup probe has succeeded.
func (m *machine) open(now time.Time) {
	if !m.gated {
		return
	}
	m.gated = false
	if m.kind == probecalls.Liveness {
		now = now.Add(m.timing.period) // it has just been seen to be well
	}
	if m.from.Before(now) {
		m.from = now
	}
	m.next = m.from
}

// change takes in another spec. The result stays, its answers so far do not count any more.
func (m *machine) change(t timing, now time.Time) {
	m.timing, m.last, m.run = t, probecalls.Unknown, 0
	if latest := now.Add(t.period); m.next.After(latest) && m.from.Before(now) {
		m.next = latest
	}
}

// answered takes in the answer to a call that began at begun, and sets when the next is due: a period after the beginning of this
// one, or now when it took longer. It tells whether the result is another one.
func (m *machine) answered(outcome probecalls.Outcome, begun, now time.Time) bool {
	early := m.isEarly(begun)
	m.next = begun.Add(m.timing.period)
	if early && outcome != probecalls.Success {
		end := m.from.Add(m.timing.period)
		if m.next = begun.Add(max(firstGap, begun.Sub(m.from))); m.next.After(end) {
			m.next = end
		}
	}
	if m.next.Before(now) {
		m.next = now
	}
	result, threshold := decide.Success, m.timing.successes
	switch outcome {
	case probecalls.Unknown:
		return false
	case probecalls.Failure:
		result, threshold = decide.Failure, m.timing.failures
	case probecalls.Success:
	}
	if m.last != outcome {
		m.last, m.run = outcome, 0
	}
	if early && outcome == probecalls.Failure {
		m.run = 0
		return false
	}
	if m.run = min(m.run+1, threshold); m.run < threshold {
		return false
	}
	changed := m.result != result
	m.result, m.held = result, ends(m.kind, result)
	return changed
}

// isEarly tells whether a call at a time is one of those in the first period that a failure of is expected.
func (m *machine) isEarly(at time.Time) bool {
	return m.kind != probecalls.Liveness && m.result != decide.Success && at.Before(m.from.Add(m.timing.period))
}
