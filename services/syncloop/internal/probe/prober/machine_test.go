package prober

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// start returns the start time of the container.
func start() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// asks runs a machine with a list of answers. It returns the time of each call, in seconds after the container's start,
// and its effect: "1:failure" is a changed result, and "|" the end of all calls.
func asks(m machine, answers string) string {
	var results []string
	for _, a := range answers {
		if m.waits() {
			break
		}
		at := m.next
		text := fmt.Sprint(at.Sub(start()).Seconds())
		outcome := map[rune]probecalls.Outcome{'s': probecalls.Success, 'f': probecalls.Failure, '?': probecalls.Unknown}[a]
		if m.answered(outcome, at, at) {
			text += ":" + wordOf(m.result)
		}
		results = append(results, text)
	}
	if m.waits() {
		results = append(results, "|")
	}
	return strings.Join(results, " ")
}

func TestWhenContainersAreAskedAndWhatComesOfIt(t *testing.T) {
	for _, test := range []struct {
		name    string
		kind    probecalls.Kind
		spec    v1.Probe
		answers string
		want    string
	}{
		{"a container that is ready at once", probecalls.Readiness, v1.Probe{}, "sss", "0:success 10 20"},
		{"one that soon is", probecalls.Readiness, v1.Probe{}, "fffss", "0 1 2 4:success 14"},
		{"one that is not for long", probecalls.Readiness, v1.Probe{}, "ffffffs", "0 1 2 4 8 10 20:success"},
		{"often is not more often than the period", probecalls.Readiness, v1.Probe{PeriodSeconds: 1}, "ffs", "0 1 2:success"},
		{"after the initial delay", probecalls.Readiness, v1.Probe{InitialDelaySeconds: 30}, "fs", "30 31:success"},
		{"not ready after three failures in a row", probecalls.Readiness, v1.Probe{PeriodSeconds: 1}, "sffsfff", "0:success 1 2 3 4 5 6:failure"},
		{"ready after two successes in a row", probecalls.Readiness, v1.Probe{PeriodSeconds: 1, SuccessThreshold: 2}, "sfss", "0 1 2 3:success"},
		{"each a period after the other", probecalls.Readiness, v1.Probe{SuccessThreshold: 2}, "fss", "0 1 11:success"},
		{
			"ready and not and again", probecalls.Readiness, v1.Probe{PeriodSeconds: 1, FailureThreshold: 1}, "sfsf",
			"0:success 1:failure 2:success 3:failure",
		},
		{
			"what could not be asked is no answer", probecalls.Readiness, v1.Probe{PeriodSeconds: 1, FailureThreshold: 2}, "s?f?f",
			"0:success 1 2 3 4:failure",
		},

		{"liveness begins a period after the start", probecalls.Liveness, v1.Probe{}, "sss", "10 20 30"},
		{"or when it is told to", probecalls.Liveness, v1.Probe{InitialDelaySeconds: 3}, "sss", "3 13 23"},
		{"dead after three failures, and then left alone", probecalls.Liveness, v1.Probe{PeriodSeconds: 2}, "fsffff", "2 4 6 8 10:failure |"},
		{"dead after one", probecalls.Liveness, v1.Probe{FailureThreshold: 1, PeriodSeconds: 5}, "f", "5:failure |"},

		{"started at once, and never asked again", probecalls.Startup, v1.Probe{}, "ss", "0:success |"},
		{"started late", probecalls.Startup, v1.Probe{PeriodSeconds: 5, FailureThreshold: 10}, "ffffffs", "0 1 2 4 5 10 15:success |"},
		{"never started, with its whole time", probecalls.Startup, v1.Probe{PeriodSeconds: 5}, "ffffffff", "0 1 2 4 5 10 15:failure |"},
		{"never started, with a short period", probecalls.Startup, v1.Probe{PeriodSeconds: 1, FailureThreshold: 2}, "ffff", "0 1 2:failure |"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := begin(test.kind, timingOf(&test.spec), beginning{now: start(), startedAt: start()})
			if got := asks(m, test.answers); got != test.want {
				t.Errorf("\ngot  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestACallThatTakesLongerThanThePeriodIsFollowedAtOnce(t *testing.T) {
	m := begin(probecalls.Readiness, timingOf(&v1.Probe{PeriodSeconds: 2}), beginning{now: start(), startedAt: start()})
	m.answered(probecalls.Success, start(), start().Add(5*time.Second))
	if want := start().Add(5 * time.Second); !m.next.Equal(want) {
		t.Errorf("next at %v, want %v", m.next, want)
	}
}

func TestWhatARestartOfThisProcessFinds(t *testing.T) {
	now := start().Add(time.Hour)
	for _, test := range []struct {
		name   string
		kind   probecalls.Kind
		kept   decide.ProbeResult
		result decide.ProbeResult
		next   time.Duration // for a jitter of 0.5; negative for never
	}{
		{"ready stays ready, asked within the period", probecalls.Readiness, decide.Success, decide.Success, 10 * time.Second},
		{"not ready is asked soon", probecalls.Readiness, decide.Failure, decide.Failure, time.Second / 2},
		{"never asked is asked soon", probecalls.Readiness, decide.Unknown, decide.Failure, time.Second / 2},
		{"alive, asked within the period", probecalls.Liveness, decide.Unknown, decide.Success, 10 * time.Second},
		{"about to be killed still is", probecalls.Liveness, decide.Failure, decide.Failure, -1},
		{"started is never asked again", probecalls.Startup, decide.Success, decide.Success, -1},
		{"not started is asked soon", probecalls.Startup, decide.Unknown, decide.Unknown, time.Second / 2},
		{"about to be killed for it still is", probecalls.Startup, decide.Failure, decide.Failure, -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := begin(test.kind, timingOf(&v1.Probe{PeriodSeconds: 20}), beginning{
				now: now, startedAt: start(), kept: test.kept, resumed: true, spread: 0.5,
			})
			next := time.Duration(-1)
			if !m.waits() {
				next = m.next.Sub(now)
			}
			if m.result != test.result || next != test.next {
				t.Errorf("result %v, next in %v; want %v, %v", m.result, next, test.result, test.next)
			}
		})
	}
}

func TestNoProbeRunsBeforeTheStartupProbeHasSucceeded(t *testing.T) {
	for kind, want := range map[probecalls.Kind]time.Duration{
		probecalls.Readiness: 100 * time.Second, probecalls.Liveness: 110 * time.Second,
	} {
		m := begin(kind, timingOf(&v1.Probe{InitialDelaySeconds: 3}), beginning{
			now: start(), startedAt: start(), gated: true,
		})
		if !m.waits() {
			t.Fatalf("%s does not wait", kind)
		}
		m.open(start().Add(100 * time.Second))
		if got := m.next.Sub(start()); m.waits() || got != want {
			t.Errorf("%s: first asked after %v, want %v", kind, got, want)
		}
	}
	late := begin(probecalls.Liveness, timingOf(&v1.Probe{InitialDelaySeconds: 300}), beginning{
		now: start(), startedAt: start(), gated: true,
	})
	late.open(start().Add(time.Second))
	if got := late.next.Sub(start()); got != 300*time.Second {
		t.Errorf("the initial delay was cut to %v, want %v", got, 300*time.Second)
	}
}

func TestAClockThatIsSetDelaysNoFirstCallByMoreThanTheInitialDelay(t *testing.T) {
	for _, set := range []time.Duration{-24 * time.Hour, 0, 24 * time.Hour} {
		m := begin(probecalls.Readiness, timingOf(&v1.Probe{InitialDelaySeconds: 5}), beginning{
			now: start(), startedAt: start().Add(set),
		})
		if m.next.After(start().Add(5 * time.Second)) {
			t.Errorf("set by %v: first asked after %v", set, m.next.Sub(start()))
		}
	}
}

// TestNoResultChangesWithoutAsManyAnswersInARow checks the thresholds for any probe and any answers.
func TestNoResultChangesWithoutAsManyAnswersInARow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(kinds()).Draw(t, "kind")
		spec := v1.Probe{
			InitialDelaySeconds: rapid.Int32Range(0, 20).Draw(t, "delay"), PeriodSeconds: rapid.Int32Range(1, 20).Draw(t, "period"),
			SuccessThreshold: 1, FailureThreshold: rapid.Int32Range(1, 5).Draw(t, "failures"),
		}
		if kind == probecalls.Readiness {
			spec.SuccessThreshold = rapid.Int32Range(1, 5).Draw(t, "successes")
		}
		gated := kind != probecalls.Startup && rapid.Bool().Draw(t, "gated")
		m := begin(kind, timingOf(&spec), beginning{now: start(), startedAt: start(), gated: gated})
		if m.waits() != gated {
			t.Fatalf("waits for the startup probe: %v, want %v", m.waits(), gated)
		}
		earliest := start().Add(time.Duration(spec.InitialDelaySeconds) * time.Second)
		if gated {
			opened := start().Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "started after")) * time.Second)
			m.open(opened)
			if opened.After(earliest) {
				earliest = opened
			}
		}
		row := map[probecalls.Outcome]int{}
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			if m.waits() {
				if kind == probecalls.Readiness || kind == probecalls.Liveness && m.result != decide.Failure ||
					m.result == decide.Unknown {
					t.Fatalf("nothing more is asked with the result %v", m.result)
				}
				return
			}
			if m.next.Before(earliest) {
				t.Fatalf("asked at %v, before the initial delay was over or the container had started", m.next)
			}
			answer(t, &m, kind, spec, row)
		}
	})
}

// answer passes one answer to a machine and checks the effect. row counts the answers in a row.
func answer(t *rapid.T, m *machine, kind probecalls.Kind, spec v1.Probe, row map[probecalls.Outcome]int) {
	at, before := m.next, m.result
	now := at.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "took")) * time.Millisecond)
	outcome := rapid.SampledFrom([]probecalls.Outcome{
		probecalls.Success, probecalls.Failure, probecalls.Unknown,
	}).Draw(t, "answer")
	if outcome != probecalls.Unknown {
		count := row[outcome] + 1
		clear(row)
		row[outcome] = count
	}
	changed := m.answered(outcome, at, now)
	if changed != (m.result != before) {
		t.Fatalf("says changed=%v of %v after %v", changed, m.result, before)
	}
	thresholds := map[decide.ProbeResult]bool{
		decide.Success: row[probecalls.Success] >= int(spec.SuccessThreshold),
		decide.Failure: row[probecalls.Failure] >= int(spec.FailureThreshold),
	}
	switch {
	case changed && !thresholds[m.result]:
		t.Fatalf("is %v after %v answers in a row", m.result, row)
	case kind == probecalls.Readiness && thresholds[decide.Success] && m.result != decide.Success:
		t.Fatalf("is not ready after %v answers in a row", row)
	case kind == probecalls.Liveness && thresholds[decide.Failure] && m.result != decide.Failure:
		t.Fatalf("is alive after %v answers in a row", row)
	case m.next.Before(now) || m.next.After(now.Add(time.Duration(spec.PeriodSeconds)*time.Second)):
		t.Fatalf("next at %v, now is %v", m.next, now)
	}
}
