package transcripts

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
)

// takesProbe is the duration of a probe's call.
const takesProbe = 2 * time.Millisecond

// newProbes returns the prober. The story answers its calls.
func newProbes(s *story, logger *slog.Logger) *prober.Manager {
	book := prober.OpenBook(filepath.Join(s.stateDir, "probes"), slog.New(slog.DiscardHandler))
	return prober.New(prober.Config{
		Probe: s.probe, Book: book, Clock: clock.RealClock{}, Tracer: telemetry.Off(), Logger: logger,
		Spread: func() float64 { return 0.5 },
	})
}

// probe answers a call. It writes a line for the first call of a container, and when the answer differs from the last
// one.
func (s *story) probe(ctx context.Context, t probecalls.Target) probecalls.Answer {
	kind := strings.ToLower(string(t.Kind))
	s.mu.Lock()
	failure, key := s.answers[kind], t.ContainerID+kind
	before, known := s.answered[key]
	s.answered[key] = failure
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return probecalls.Answer{Err: ctx.Err()}
	case <-time.After(takesProbe):
	}
	answer := probecalls.Answer{Outcome: probecalls.Success}
	text := "it is well"
	if failure != "" {
		answer, text = probecalls.Answer{Outcome: probecalls.Failure, Output: failure}, failure
	}
	if !known || before != failure {
		_, name := s.machine.container(t.ContainerID)
		s.line(lanePLEG, "probe", fmt.Sprintf("%s is asked for its %s: %s", name, kind, text))
	}
	return answer
}

// answer makes containers fail a kind of probe with a text from now on. An empty text makes them succeed.
func (s *story) answer(kind, failure string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[kind] = failure
}

func TestReadiness(t *testing.T) {
	writeStory(t, "readiness", "A container is ready, is not, and is again", func(s *story) {
		web := pod("web", "web-a", "web:1")
		web.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 2}
		s.note("syncloop starts, with one pod in the only source. Its container has a readiness probe, with a period of 10 s, and does not\nserve at once.")
		s.answer("readiness", "connection refused")
		s.source("file", true)
		s.add(configv1.Op_OP_ADD, web)
		s.start()
		s.pass(3 * time.Second)
		s.note("Now it does. In its first period it is asked more often, so that nobody waits for 10 s.")
		s.answer("readiness", "")
		s.ready("web-a")
		s.pass(25 * time.Second)
		s.note("It has too much to do. One failure is none: the pod is not ready after the second one in a row. It is not restarted.")
		s.answer("readiness", "statuscode: 503")
		s.pass(25 * time.Second)
		s.note("It has caught up.")
		s.answer("readiness", "")
		s.ready("web-a")
		s.note("syncloop is killed, and comes back. The pod is ready from the first answer on: the result was on disk before it was told. It\nis asked again within the period.")
		s.kill()
		s.pass(3 * time.Second)
		s.start()
		s.pass(10 * time.Second)
		s.note("The manifest is removed. Readiness is asked on while the container ends: who sends it requests is told when it takes no more.")
		s.machine.fake.IgnoreTerm("main")
		s.remove(web)
		s.answer("readiness", "statuscode: 503")
		s.pass(time.Minute)
	})
}

func TestLivenessOfAJob(t *testing.T) {
	writeStory(t, "liveness-of-a-job", "A container of a job hangs, and exits with 0 when it is killed", func(s *story) {
		s.machine.fake.ExitOnTerm("main", 0)
		job := pod("job", "job-a", "web:1")
		job.Spec.RestartPolicy = v1.RestartPolicyOnFailure
		job.Spec.Containers[0].LivenessProbe = &v1.Probe{PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 1}
		begin(s, job)
		s.note("It hangs. It exits with 0 on SIGTERM, which is no success: it is started again. Its end is no state of the pod, because the\nAPI server would take it for the last one.")
		s.answer("liveness", "context deadline exceeded")
		s.until(time.Minute, func() bool { return strings.Contains(s.reported["job-a"], "restart count 1") })
		s.note("It hangs again and again. A container that is killed is started at once while the end before it is long enough ago.\nsyncloop is killed while the container waits for its restart.")
		s.until(5*time.Minute, func() bool { return strings.Contains(s.reported["job-a"], "waits (CrashLoopBackOff)") })
		s.answer("liveness", "")
		s.kill()
		s.pass(2 * time.Second)
		s.note("The next syncloop knows the result of the probe from its file.")
		s.start()
		s.ready("job-a")
	})
}

func TestLiveness(t *testing.T) {
	writeStory(t, "liveness", "A container starts slowly, hangs, and is restarted", func(s *story) {
		grace := int64(5)
		web := pod("web", "web-a", "web:1")
		c := &web.Spec.Containers[0]
		c.StartupProbe = &v1.Probe{PeriodSeconds: 5, SuccessThreshold: 1, FailureThreshold: 6}
		c.LivenessProbe = &v1.Probe{
			PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3, TerminationGracePeriodSeconds: &grace,
		}
		s.note("syncloop starts, with one pod in the only source. It takes some time to start, which its startup probe gives it: 30 s at most.")
		s.answer("startup", "connection refused")
		s.source("file", true)
		s.add(configv1.Op_OP_ADD, web)
		s.start()
		s.pass(12 * time.Second)
		s.note("It has started. From now on it is asked whether it is alive, for the first time in 10 s; what it was asked first is over.")
		s.answer("startup", "")
		s.ready("web-a")
		s.pass(25 * time.Second)
		s.note("It hangs. After three failures in a row it is killed, with the 5 s that the probe gives it and not the pod's 30, and started\nagain as after any crash. The next container is another one: it has to start, too, before it is asked whether it is alive.")
		s.answer("liveness", "context deadline exceeded")
		s.answer("startup", "connection refused")
		s.until(time.Minute, func() bool { return !s.isReady("web-a") })
		s.answer("liveness", "")
		s.pass(4 * time.Second)
		s.answer("startup", "")
		s.ready("web-a")
		s.pass(15 * time.Second)
	})
}
