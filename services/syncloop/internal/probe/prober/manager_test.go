package prober_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

func podOf(containers string, change func(*v1.Pod)) *v1.Pod {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, containers)
	change(pod)
	return pod
}

func TestAContainerIsReadyFromItsFirstAnswerUntilItsThirdFailure(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a", func(p *v1.Pod) { p.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 2} })
		r.observe(pod, "s0:ready a@s0:created")
		r.pass(time.Second)
		if r.expect("calls of what does not run", &r.calls, ""); r.manager.Ready("a-1") {
			t.Error("it is ready before it runs")
		}
		r.observe(pod, "s0:ready a@s0:running")
		r.pass(2500 * time.Millisecond)
		r.expect("calls", &r.calls, "1 a readiness, 3 a readiness")
		r.expect("changes", &r.changes, "1 a-1 readiness success")
		if !r.manager.Ready("a-1") {
			t.Error("it is not ready")
		}
		r.answer("a readiness", fails)
		r.pass(6 * time.Second)
		r.expect("changes", &r.changes, "9 a-1 readiness failure")
		r.answer("a readiness", nil)
		r.pass(2 * time.Second)
		r.expect("changes", &r.changes, "11 a-1 readiness success")
	})
}

func TestOnlyOrdinaryContainersAndSidecarsAreAsked(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("init:i sidecar:s a ephemeral:e", func(p *v1.Pod) {
			p.Spec.InitContainers[0].ReadinessProbe, p.Spec.InitContainers[1].ReadinessProbe = every(), every()
			p.Spec.Containers[0].ReadinessProbe, p.Spec.EphemeralContainers[0].ReadinessProbe = every(), every()
		})
		r.observe(pod, "s0:ready i@s0:running s@s0:running a@s0:running e@s0:running")
		r.pass(time.Second / 2)
		r.expect("calls", &r.calls, "0 a readiness, 0 s readiness")
	})
}

func TestTheStartupProbeDelaysTheOthersAndIsThenOver(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a", func(p *v1.Pod) {
			c := &p.Spec.Containers[0]
			c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = &v1.Probe{
				PeriodSeconds: 1, FailureThreshold: 30,
			}, every(), every()
		})
		r.answer("a startup", fails)
		r.observe(pod, "s0:ready a@s0:running")
		r.pass(2500 * time.Millisecond)
		r.expect("calls", &r.calls, "0 a startup, 1 a startup, 2 a startup")
		if r.manager.Started("a-1") || r.manager.Startup("a-1") != decide.Unknown {
			t.Error("it has started, or failed to")
		}
		r.answer("a startup", nil)
		r.pass(2 * time.Second)
		r.expect("calls", &r.calls, "3 a readiness, 3 a startup, 4 a liveness, 4 a readiness")
		if !r.manager.Started("a-1") || !r.manager.Ready("a-1") {
			t.Error("it has not started, or is not ready")
		}
	})
}

func TestAContainerWhoseLivenessHasFailedIsLeftAloneUntilAnotherOneRuns(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a", func(p *v1.Pod) { p.Spec.Containers[0].LivenessProbe = every() })
		r.answer("a liveness", fails)
		r.observe(pod, "s0:ready a@s0:running")
		r.pass(5 * time.Second)
		r.expect("calls", &r.calls, "1 a liveness")
		r.expect("changes", &r.changes, "1 a-1 liveness failure")
		if r.manager.Liveness("a-1") != decide.Failure {
			t.Error("it is well")
		}
		r.answer("a liveness", nil)
		r.observe(pod, "s0:ready a@s0:exited=137")
		r.kill()
		r.start()
		r.observe(pod, "s0:ready a@s0:exited=137")
		r.pass(time.Second)
		if r.manager.Liveness("a-1") != decide.Failure {
			t.Error("it is forgotten before the next one is started for it")
		}
		r.observe(pod, "s0:ready a@s0:exited=137 a@s0:running,rc=1")
		r.pass(1500 * time.Millisecond)
		r.expect("calls of the next", &r.calls, "7 a liveness")
		if r.manager.Liveness("a-1") != decide.Unknown || r.manager.Liveness("a-2") == decide.Failure {
			t.Error("the result of the one before is kept, or is that of the next")
		}
	})
}

func TestACallThatHangsDelaysItsOwnProbeOnly(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a b", func(p *v1.Pod) {
			p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[1].ReadinessProbe = every(), every()
		})
		r.answer("a readiness", func(ctx context.Context) probecalls.Answer {
			select {
			case <-ctx.Done():
			case <-time.After(2500 * time.Millisecond):
			}
			return probecalls.Answer{Outcome: probecalls.Failure}
		})
		r.observe(pod, "s0:ready a@s0:running b@s0:running")
		r.pass(2700 * time.Millisecond)
		r.expect("calls", &r.calls, "0 a readiness, 0 b readiness, 1 b readiness, 2 b readiness, 2.5 a readiness")
	})
}

func TestOfAPodThatIsBeingEndedOnlyReadinessIsAsked(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a b", func(p *v1.Pod) {
			for i := range p.Spec.Containers {
				p.Spec.Containers[i].ReadinessProbe, p.Spec.Containers[i].LivenessProbe = every(), every()
			}
			p.Spec.Containers[1].StartupProbe = every()
		})
		r.answer("a liveness", hangs)
		r.answer("b startup", hangs)
		status := r.observe(pod, "s0:ready a@s0:running b@s0:running")
		r.pass(1500 * time.Millisecond)
		r.expect("calls", &r.calls, "0 a readiness, 0 b startup, 1 a liveness, 1 a readiness")
		r.answer("a readiness", fails)
		r.manager.Observe(pod, status, "10.0.0.9", true)
		r.pass(time.Second)
		r.expect("calls", &r.calls, "2 a readiness")
		r.expect("changes", &r.changes, "0 a-1 readiness success, 2 a-1 readiness failure")
		r.observe(pod, "s0:ready a@s0:exited=0 b@s0:exited=0")
		r.pass(2 * time.Second)
		r.expect("calls of what has ended", &r.calls, "")
	})
}

func TestTheResultsOutliveTheProcess(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a b", func(p *v1.Pod) {
			p.Spec.Containers[0].StartupProbe, p.Spec.Containers[0].ReadinessProbe = every(), &v1.Probe{PeriodSeconds: 10}
			p.Spec.Containers[1].LivenessProbe = every()
		})
		r.answer("b liveness", fails)
		started := time.Now()
		r.observe(pod, "s0:ready a@s0:running b@s0:running")
		r.pass(5 * time.Second)
		since := r.manager.Since("a-1")
		r.kill()
		r.took(&r.calls)
		r.took(&r.changes)
		r.pass(5 * time.Second)

		r.start()
		if !r.manager.Ready("a-1") || !r.manager.Started("a-1") || r.manager.Liveness("b-2") != decide.Failure {
			t.Error("results are lost")
		}
		if got := r.manager.Since("a-1"); !got.Equal(since) || got.IsZero() {
			t.Errorf("ready since %v, was %v", got, since)
		}
		r.observeStarted(pod, "s0:ready a@s0:running b@s0:running", started)
		r.pass(9 * time.Second)
		r.expect("calls", &r.calls, "15 a readiness")
		r.expect("changes", &r.changes, "")
	})
}

func TestAFileThatCannotBeReadIsNamedAndTheProbesBeginAgain(t *testing.T) {
	play(t, func(r *rig) {
		r.kill()
		for name, content := range map[string]string{"u.json": `{"containers":{"a-1":{"Readiness":{"result":"perhaps"}}}}`, "u.json.tmp": "{"} {
			if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r.start()
		if text := r.log.String(); !strings.Contains(text, filepath.Join(r.dir, "u.json")) ||
			!strings.Contains(text, "perhaps") {
			t.Errorf("the log does not name it: %s", text)
		}
		if got := r.files(); strings.TrimSpace(got) != `u.json.damaged {"containers":{"a-1":{"Readiness":{"result":"perhaps"}}}}` {
			t.Errorf("the files are %s, want only the damaged one", got)
		}
		r.observe(podOf("a", func(p *v1.Pod) { p.Spec.Containers[0].ReadinessProbe = every() }), "s0:ready a@s0:running")
		r.pass(time.Second / 2)
		r.expect("changes", &r.changes, "0 a-1 readiness success")
	})
}

func TestResultsGoWithTheirContainersAndPods(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a b", func(p *v1.Pod) {
			p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[1].ReadinessProbe = every(), every()
		})
		r.observe(pod, "s0:ready a@s0:running b@s0:running")
		r.pass(time.Second / 2)
		if got := r.files(); !strings.Contains(got, "a-1") || !strings.Contains(got, "b-2") {
			t.Errorf("the file does not have both: %s", got)
		}
		unsure := podviewtest.Status(pod, "s0:ready a@s0:exited=1 b@s0:running")
		unsure.InspectError = "the runtime does not answer"
		r.manager.Observe(pod, unsure, "10.0.0.9", false)
		r.pass(0)
		if got := r.files(); !strings.Contains(got, "a-1") {
			t.Errorf("what may be wrong has made it forgotten: %s", got)
		}
		r.observe(pod, "s0:ready a@s0:exited=1 b@s0:running")
		r.pass(0)
		if got := r.files(); !strings.Contains(got, "a-1") {
			t.Errorf("it cannot be told any more why the next one is started: %s", got)
		}
		r.observe(pod, "s0:ready a@s0:exited=1 b@s0:running a@s0:created,rc=1")
		r.pass(0)
		if got := r.files(); strings.Contains(got, "a-1") || !strings.Contains(got, "b-2") {
			t.Errorf("the file has another one than the one that runs: %s", got)
		}
		r.manager.Forget(pod.UID)
		r.pass(0)
		if got := r.files(); got != "" {
			t.Errorf("files are left: %s", got)
		}
		r.expect("metrics forgotten", &r.forgot, "0.5 a readiness, 0.5 b readiness")
		if r.manager.Ready("b-2") || len(r.manager.UIDs()) != 0 {
			t.Error("something is known of it")
		}
	})
}

func TestWhatIsKeptOfContainersThatAreGoneAfterARestartIsDropped(t *testing.T) {
	play(t, func(r *rig) {
		with := podOf("a", func(p *v1.Pod) { p.Spec.Containers[0].ReadinessProbe = every() })
		without := podOf("a", func(p *v1.Pod) { p.UID = "other" })
		r.observe(with, "s0:ready a@s0:running")
		r.pass(time.Second / 2)
		r.kill()
		data, err := os.ReadFile(filepath.Join(r.dir, "u.json"))
		if err == nil {
			err = os.WriteFile(filepath.Join(r.dir, "other.json"), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.start()
		if got := len(r.manager.UIDs()); got != 2 {
			t.Errorf("%d pods are known, want 2", got)
		}
		r.observe(with, "s1:ready a@s1:exited=1 a@s1:running,rc=1")
		r.observe(without, "s1:ready a@s1:exited=1 a@s1:running,rc=1")
		r.pass(time.Second / 2)
		if got := r.files(); strings.Contains(got, "a-1") || !strings.Contains(got, "a-2") || strings.Contains(got, "other") {
			t.Errorf("kept: %s, want text without %q, with %q and without %q", got, "a-1", "a-2", "other")
		}
	})
}

func TestAResultThatCannotBeSavedIsStillPublished(t *testing.T) {
	play(t, func(r *rig) {
		if err := errors.Join(os.RemoveAll(r.dir), os.WriteFile(r.dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		r.unkept = true
		r.observe(podOf("a", func(p *v1.Pod) { p.Spec.Containers[0].ReadinessProbe = every() }), "s0:ready a@s0:running")
		r.pass(time.Second / 2)
		r.expect("changes", &r.changes, "0 a-1 readiness success")
		if text := r.log.String(); !strings.Contains(text, "if syncloop is killed") {
			t.Errorf("nothing is said of it: %s", text)
		}
	})
}

func TestAProbeThatIsChangedOrTakenOutInAPodThatRuns(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a", func(p *v1.Pod) {
			p.Spec.Containers[0].StartupProbe, p.Spec.Containers[0].ReadinessProbe = every(), every()
		})
		r.answer("a startup", fails)
		started := time.Now()
		pod.Spec.Containers[0].StartupProbe.FailureThreshold = 99
		r.observe(pod, "s0:ready a@s0:running")
		r.pass(1500 * time.Millisecond)
		r.expect("calls", &r.calls, "0 a startup, 1 a startup")

		taken := pod.DeepCopy()
		taken.Spec.Containers[0].StartupProbe = nil
		r.observeStarted(taken, "s0:ready a@s0:running", started)
		r.pass(time.Second)
		r.expect("calls without a startup probe", &r.calls, "1.5 a readiness, 2.5 a readiness")

		slower := taken.DeepCopy()
		slower.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 5
		r.observeStarted(slower, "s0:ready a@s0:running", started)
		r.pass(7 * time.Second)
		r.expect("calls of a slower probe", &r.calls, "3.5 a readiness, 8.5 a readiness")
		r.expect("changes", &r.changes, "1.5 a-1 readiness success")

		r.observeStarted(taken, "s0:ready a@s0:running", started)
		r.answer("a readiness", fails)
		r.pass(2 * time.Second)
		r.expect("calls of a faster one again", &r.calls, "10.5 a readiness, 11.5 a readiness")
		r.expect("changes", &r.changes, "10.5 a-1 readiness failure")
	})
}

func TestDescriptionsOfProbes(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a", func(p *v1.Pod) {
			p.Spec.Containers[0].LivenessProbe, p.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1}, every()
		})
		r.answer("a liveness", fails)
		r.answer("a readiness", func(context.Context) probecalls.Answer {
			return probecalls.Answer{Err: errors.New("rpc error: no"), Output: strings.Repeat("é", 200)}
		})
		r.observe(pod, "s0:ready a@s0:running")
		described := r.manager.Describe(pod.UID)
		if len(described) != 2 || described[0].GetAskedAt() != nil ||
			described[1].GetResult() != enginev1.ProbeResult_PROBE_RESULT_FAILURE {
			t.Fatalf("before the first call: %v", described)
		}
		r.pass(2500 * time.Millisecond)
		described = r.manager.Describe(pod.UID)
		liveness, readiness := described[0], described[1]
		if liveness.GetKind() != "Liveness" ||
			liveness.GetResult() != enginev1.ProbeResult_PROBE_RESULT_SUCCESS || liveness.GetResultSince() != nil ||
			liveness.GetAnswer() != enginev1.ProbeResult_PROBE_RESULT_FAILURE ||
			liveness.GetInARow() != 2 || liveness.GetSaid() != "no" ||
			!liveness.GetNextAt().AsTime().Equal(r.begun.Add(3*time.Second)) {
			t.Errorf("liveness: %v", liveness)
		}
		if message := readiness.GetSaid(); readiness.GetAnswer() != enginev1.ProbeResult_PROBE_RESULT_UNSPECIFIED ||
			message != strings.Repeat("é", 100)+"…" {
			t.Errorf("readiness: %v", readiness)
		}
		r.pass(time.Second)
		liveness = r.manager.Describe(pod.UID)[0]
		if !liveness.GetResultSince().AsTime().Equal(r.begun.Add(3*time.Second)) || liveness.GetNextAt() != nil {
			t.Errorf("liveness that has failed: %v", liveness)
		}
		if got := r.manager.Describe("other"); got != nil {
			t.Errorf("of a pod that is not there: %v", got)
		}
	})
}

// TestOutputOfAProbeBecomesValidText checks that an answer with any bytes becomes valid UTF-8, because gRPC accepts no
// other strings.
func TestOutputOfAProbeBecomesValidText(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a", func(p *v1.Pod) { p.Spec.Containers[0].ReadinessProbe = every() })
		for output, want := range map[string]string{
			"caf\xe9 closed": "caf\uFFFD closed", strings.Repeat("x", 199) + "\xe9\xe9": strings.Repeat("x", 199) + "…",
		} {
			r.answer("a readiness", func(context.Context) probecalls.Answer {
				return probecalls.Answer{Outcome: probecalls.Failure, Output: output}
			})
			r.observe(pod, "s0:ready a@s0:running")
			r.pass(1500 * time.Millisecond)
			described := r.manager.Describe(pod.UID)
			if _, err := proto.Marshal(described[0]); err != nil || described[0].GetSaid() != want {
				t.Errorf("of %q people are told %q, error %v, want %q", output, described[0].GetSaid(), err, want)
			}
		}
	})
}

// TestARunningCallIsShown also checks the start of the call, and the result of the one before.
func TestARunningCallIsShown(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a", func(p *v1.Pod) { p.Spec.Containers[0].ReadinessProbe = every() })
		r.answer("a readiness", func(context.Context) probecalls.Answer {
			time.Sleep(3 * time.Second) // on the bubble's clock
			return probecalls.Answer{Outcome: probecalls.Failure, Output: "slow"}
		})
		begun := time.Now()
		r.observe(pod, "s0:ready a@s0:running")
		r.pass(time.Second)
		described := r.manager.Describe(pod.UID)[0]
		since := described.GetAskingSince()
		if since == nil || !since.AsTime().Equal(begun) || described.GetAskedAt() != nil {
			t.Errorf("while the first call hangs, people are told %v, want that it is under way since %v", described, begun)
		}
		r.pass(2500 * time.Millisecond)
		if again := r.manager.Describe(pod.UID)[0]; !again.GetAskedAt().AsTime().Equal(begun) || again.GetSaid() != "slow" ||
			!again.GetAskingSince().AsTime().After(begun) {
			t.Errorf("during the second, people are told %v", again)
		}
	})
}

func TestAProbeThatIsChangedWhileItIsAskedWaitsForItsAnswer(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a", func(p *v1.Pod) { p.Spec.Containers[0].ReadinessProbe = every() })
		r.answer("a readiness", func(context.Context) probecalls.Answer {
			time.Sleep(3 * time.Second)
			return probecalls.Answer{Outcome: probecalls.Success}
		})
		started := time.Now()
		r.observe(pod, "s0:ready a@s0:running")
		r.pass(time.Second)
		changed := pod.DeepCopy()
		changed.Spec.Containers[0].ReadinessProbe.FailureThreshold = 5
		r.observeStarted(changed, "s0:ready a@s0:running", started)
		r.pass(2500 * time.Millisecond)
		r.expect("calls", &r.calls, "0 a readiness, 3 a readiness")
	})
}

// TestProbesThatAreNotCalledStandStill has a hanging call, which is well, and then a loop that has ended.
func TestProbesThatAreNotCalledStandStill(t *testing.T) {
	play(t, func(r *rig) {
		pod := podOf("a b", func(p *v1.Pod) {
			p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[1].ReadinessProbe = every(), every()
		})
		r.answer("b readiness", hangs)
		r.observe(pod, "s0:ready a@s0:running b@s0:running")
		r.pass(time.Minute)
		if err := r.manager.Stands(); err != nil {
			t.Errorf("with a call that hangs they stand still: %v", err)
		}
		r.kill()
		r.pass(watchdog.Limit + 2*time.Second)
		if err := r.manager.Stands(); err == nil {
			t.Error("without a loop they do not stand still")
		}
	})
}
