package prober_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// step is one event of a history.
type step struct {
	// what is one of run, exit, end, kill, answer, pass.
	what string
	// kind is the probe whose answer changes, and answer its new answer.
	kind   string
	answer probecalls.Outcome
	// takes is the duration of the answer, or the time that passes.
	takes time.Duration
}

func drawStep(t *rapid.T) step {
	return step{
		what: rapid.SampledFrom([]string{"run", "exit", "end", "kill", "kill", "answer", "answer", "pass", "pass", "pass"}).Draw(t, "what"),
		kind: rapid.SampledFrom([]string{"startup", "liveness", "readiness"}).Draw(t, "kind"),
		answer: rapid.SampledFrom([]probecalls.Outcome{
			probecalls.Success, probecalls.Success, probecalls.Failure, probecalls.Unknown,
		}).Draw(t, "answer"),
		takes: time.Duration(rapid.IntRange(0, 4000).Draw(t, "takes")) * time.Millisecond,
	}
}

// history plays steps on one pod whose container has all three probes.
type history struct {
	*rig
	pod *v1.Pod
	// attempt is the number of the last container, running whether it runs, and started its start time.
	attempt int
	running bool
	ending  bool
	started time.Time
}

// TestAnyHistory checks the invariants for any answers, starts and exits of containers, and kills of this process. A
// probe has one call at a time, and only for a running container. The startup probe runs before the others, and
// succeeds once. There are no liveness calls after a failure or during the termination of the pod. Each process starts
// with the results that the last one reported.
func TestAnyHistory(t *testing.T) {
	dir := t.TempDir()
	number := 0
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 30).Draw(rt, "steps")
		number++
		var broken []string
		synctest.Test(t, func(t *testing.T) {
			h := &history{rig: &rig{
				t: t, dir: fmt.Sprintf("%s/%d", dir, number), begun: time.Now(), answers: map[string]func(context.Context) probecalls.Answer{},
			}}
			h.pod = podOf("a", func(p *v1.Pod) {
				c := &p.Spec.Containers[0]
				c.StartupProbe = &v1.Probe{PeriodSeconds: 1, FailureThreshold: 2}
				c.LivenessProbe, c.ReadinessProbe = &v1.Probe{PeriodSeconds: 2, FailureThreshold: 2}, &v1.Probe{
					PeriodSeconds: 1, FailureThreshold: 1,
				}
			})
			h.start()
			for _, s := range steps {
				h.play(s)
			}
			h.kill()
			broken = h.broken
		})
		if len(broken) > 0 {
			rt.Fatalf("%s", strings.Join(broken, "\n"))
		}
	})
}

func (h *history) play(s step) {
	synctest.Wait() // calls in progress are not covered by the next check
	switch s.what {
	case "run":
		h.attempt, h.running, h.ending, h.started = h.attempt+1, true, false, time.Now()
		h.look()
	case "exit":
		h.running = false
		h.look()
	case "end":
		h.ending = true
		h.look()
	case "kill":
		h.restart()
	case "answer":
		h.answer("a "+s.kind, func(ctx context.Context) probecalls.Answer {
			select {
			case <-ctx.Done():
				return probecalls.Answer{Err: ctx.Err()}
			case <-time.After(s.takes):
				return probecalls.Answer{Outcome: s.answer}
			}
		})
	case "pass":
		h.pass(s.takes)
	}
}

func (h *history) id() string { return fmt.Sprintf("a-%d", h.attempt) }

// look passes the current pod to the manager.
func (h *history) look() {
	words := "s0:ready" + strings.Repeat(" a@s0:exited=1", max(h.attempt-1, 0))
	switch {
	case h.running:
		words += " a@s0:running"
	case h.attempt > 0:
		words += " a@s0:exited=1"
	}
	h.mu.Lock()
	h.may = map[string]bool{
		"readiness": h.running, "startup": h.running && !h.ending, "liveness": h.running && !h.ending,
	}
	h.mu.Unlock()
	h.observeEnding(h.pod, words, h.started, h.ending)
}

// restart kills the process and starts the next one, which must know the reported results.
func (h *history) restart() {
	synctest.Wait()
	h.kill()
	told := strings.Join(h.changes, "\n")
	h.start()
	last := func(kind string) decide.ProbeResult {
		success, failure := strings.LastIndex(told, h.id()+" "+kind+" success"), strings.LastIndex(told, h.id()+" "+kind+" failure")
		switch {
		case success > failure:
			return decide.Success
		case failure > success:
			return decide.Failure
		}
		return decide.Unknown
	}
	if h.attempt > 0 {
		for kind, got := range map[string]decide.ProbeResult{"startup": h.manager.Startup(h.id()), "liveness": h.manager.Liveness(h.id())} {
			if want := last(kind); got != want {
				h.breaks("after a restart %s is %v, was %v", kind, got, want)
			}
		}
		if got, want := h.manager.Ready(h.id()), last("readiness") == decide.Success; got != want {
			h.breaks("after a restart it is ready: %v, was: %v", got, want)
		}
	}
	h.look()
}
