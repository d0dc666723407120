package prober

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// firstGap is the delay of the second call for a container that has just started; the delay then doubles.
const firstGap = time.Second

// resumeSpread is the time over which the first calls after a restart of this process are spread, for containers that
// are not ready or not started. Those of others are spread over their period.
const resumeSpread = time.Second

// timing holds the delays and thresholds of a probe's spec.
type timing struct {
	// delay is the delay after the container's start.
	delay time.Duration
	// period is the interval of calls.
	period time.Duration
	// successes and failures are the thresholds of consecutive results.
	successes, failures int
}

// timingOf returns the timing of a spec, with the API's defaults.
func timingOf(spec *v1.Probe) timing {
	defaulted := func(value, otherwise int32) int32 {
		if value <= 0 {
			return otherwise
		}
		return value
	}
	return timing{
		delay:     time.Duration(max(spec.InitialDelaySeconds, 0)) * time.Second,
		period:    time.Duration(defaulted(spec.PeriodSeconds, 10)) * time.Second,
		successes: int(defaulted(spec.SuccessThreshold, 1)), failures: int(defaulted(spec.FailureThreshold, 3)),
	}
}

// machine is one probe of one container, from the container's start to its end. It decides when the next call is due,
// and computes the result from the outcomes. It has no clock; the caller passes in the time.
//
//	gated ──── the startup probe has succeeded ────▶ asked ──── a startup probe has a result, or ────▶ held
//	                                                  ▲  │      a liveness probe has failed
//	                                                  └──┘
//
// The initial result of a readiness probe is failure, and that of a liveness probe success. A startup probe has no
// initial result.
//
// In the first period of a container that has just started, startup and readiness probes are called more often, after
// 1, 2, 4, … s. So a server that needs one second is Ready after two seconds, and not after the default period of ten.
// Failures of a startup probe in that time do not count, so the container has failureThreshold whole periods to start.
// A liveness probe without initialDelaySeconds is first called one period after the start, because a container that has
// just started may not answer yet and must not be killed for that.
type machine struct {
	kind   probecalls.Kind
	timing timing
	// result is the result of the probe.
	result decide.ProbeResult
	// last is the last counted outcome, and run the number of its consecutive occurrences.
	last probecalls.Outcome
	run  int
	// gated is true until the container's startup probe has succeeded, and held when no further calls are needed for this
	// container.
	gated, held bool
	// from is the earliest time of a call.
	from time.Time
	// next is the time of the next call; invalid while the probe is gated or held.
	next time.Time
}

// beginning holds the facts about a container when its probe begins.
type beginning struct {
	now time.Time
	// startedAt is the start of the container by the runtime's clock, which may be set.
	startedAt time.Time
	// kept is the result of an earlier process; Unknown for none.
	kept decide.ProbeResult
	// gated is true if the container has a startup probe that has not succeeded.
	gated bool
	// resumed is true if the container was started before this process.
	resumed bool
	// spread is a random number between 0 and 1 for each probe.
	spread float64
}

// begin returns the machine of a probe of a running container.
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
	// If the clock was set, the delay is repeated at most once.
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

// initial returns the result of a probe before its first call.
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

// ends reports whether a result ends the calls: the container has started, or is about to be killed.
func ends(kind probecalls.Kind, result decide.ProbeResult) bool {
	return kind == probecalls.Startup && result != decide.Unknown || kind == probecalls.Liveness &&
		result == decide.Failure
}

// waits reports whether no call is due.
func (m *machine) waits() bool { return m.gated || m.held }

// open records the success of the startup probe.
func (m *machine) open(now time.Time) {
	if !m.gated {
		return
	}
	m.gated = false
	if m.kind == probecalls.Liveness {
		now = now.Add(m.timing.period) // it has just succeeded
	}
	if m.from.Before(now) {
		m.from = now
	}
	m.next = m.from
}

// change replaces the spec. The result stays, and counting starts again.
func (m *machine) change(t timing, now time.Time) {
	m.timing, m.last, m.run = t, probecalls.Unknown, 0
	if latest := now.Add(t.period); m.next.After(latest) && m.from.Before(now) {
		m.next = latest
	}
}

// answered processes the outcome of a call that began at begun, and schedules the next: a period after the start of
// this one, or now if it took longer. It reports whether the result has changed.
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

// isEarly reports whether a call is in the first period, where failures are expected.
func (m *machine) isEarly(at time.Time) bool {
	return m.kind != probecalls.Liveness && m.result != decide.Success && at.Before(m.from.Add(m.timing.period))
}
