package decide_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
)

func TestPod(t *testing.T) {
	const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	for _, test := range []struct {
		name       string
		policy     v1.RestartPolicy
		containers string
		observed   string
		want       string
	}{
		{"new pod", always, "a b", "", "sandbox(0) start(a) start(b)"},
		{"new pod with init containers starts the first", always, "init:i init:j a", "", "sandbox(0) start(i)"},
		{"all is as it should be", always, "a b", "s0:ready a@s0:running b@s0:running", "nothing"},
		{"one is missing", always, "a b", "s0:ready a@s0:running", "start(b)"},

		{"init runs", always, "init:i a", "s0:ready i@s0:running", "nothing"},
		{"init has ended, the next one starts", always, "init:i init:j a", "s0:ready i@s0:exited=0", "start(j)"},
		{"all init have ended, ordinary ones start", always, "init:i init:j a b", "s0:ready i@s0:exited=0 j@s0:exited=0", "start(a) start(b)"},
		{"ended init are not run again", always, "init:i a", "s0:ready i@s0:exited=0 a@s0:exited=1", "start(a rc=1)"},
		{"removed init are not run again", always, "init:i a", "s0:ready a@s0:running", "nothing"},
		{"removed earlier init are not run again", always, "init:i init:j a", "s0:ready j@s0:exited=0", "start(a)"},
		{"failed init is run again", onFailure, "init:i a", "s0:ready i@s0:exited=1", "start(i rc=1)"},
		{"failed init waits", always, "init:i a", "s0:ready i@s0:exited=1,rc=1,ended=3s", "wait(i 7s of 10s)"},
		{"failed init of a Never pod ends it", never, "init:i a", "s0:ready i@s0:exited=1", "stop-all"},
		{"created init is started anew", never, "init:i a", "s0:ready i@s0:created", "start(i rc=1)"},

		{"sidecar starts first", always, "sidecar:s init:i a", "", "sandbox(0) start(s)"},
		{"sidecar up, the next one starts", always, "sidecar:s init:i a", "s0:ready s@s0:running", "start(i)"},
		{"sidecar up, ordinary ones start", always, "sidecar:s a", "s0:ready s@s0:running", "start(a)"},
		{"sidecar died while init runs", always, "sidecar:s init:i a", "s0:ready s@s0:exited=0 i@s0:running", "start(s rc=1)"},
		{"sidecar died while ordinary ones run", never, "sidecar:s a", "s0:ready s@s0:exited=1 a@s0:running", "start(s rc=1)"},
		{"sidecar died before the next one ran", always, "sidecar:s a", "s0:ready s@s0:exited=1", "start(s rc=1)"},
		{"sidecars end with the pod", never, "sidecar:s a", "s0:ready s@s0:running a@s0:exited=0", "stop-all"},
		{"dead sidecar of an ended pod stays dead", never, "sidecar:s a", "s0:ready s@s0:exited=0 a@s0:exited=0", "stop-all"},

		{"Always restarts a success", always, "a", "s0:ready a@s0:exited=0", "start(a rc=1)"},
		{"OnFailure restarts a failure", onFailure, "a", "s0:ready a@s0:exited=3", "start(a rc=1)"},
		{"OnFailure leaves a success", onFailure, "a b", "s0:ready a@s0:exited=0 b@s0:running", "nothing"},
		{"OnFailure ends after success", onFailure, "a", "s0:ready a@s0:exited=0", "stop-all"},
		{"Never leaves a failure", never, "a b", "s0:ready a@s0:exited=3 b@s0:running", "nothing"},
		{"Never ends", never, "a b", "s0:ready a@s0:exited=3 b@s0:exited=0", "stop-all"},
		{"an ended pod is left alone", never, "a", "s0:notready a@s0:exited=0", "nothing"},
		{"an ended OnFailure pod is left alone", onFailure, "a", "s0:notready a@s0:exited=0", "nothing"},
		{"created container is started anew", never, "a", "s0:ready a@s0:created", "start(a rc=1)"},
		{"container in an unknown state is killed first", always, "a", "s0:ready a@s0:unknown", "kill(a-1)"},

		{"sandbox died", always, "a b", "s0:notready a@s0:running b@s0:exited=1", "stop-all sandbox(1) start(a rc=1) start(b rc=1)"},
		{"sandbox died, init runs again", always, "init:i a", "s0:notready i@s0:exited=0 a@s0:exited=255", "sandbox(1) start(i rc=1)"},
		{"in the new sandbox init goes on", always, "init:i a", "s0:notready i@s0:exited=0 a@s0:exited=255 s1:ready i@s1:running,rc=1", "nothing"},
		{"in the new sandbox ordinary ones follow", always, "init:i a",
			"s0:notready i@s0:exited=0 a@s0:exited=255 s1:ready i@s1:exited=0,rc=1", "start(a rc=1)"},
		{"sandbox died, OnFailure leaves successes", onFailure, "a b", "s0:notready a@s0:exited=0 b@s0:exited=1", "sandbox(1) start(b rc=1)"},
		{"sandbox died, a Never pod is over", never, "a b", "s0:notready a@s0:running b@s0:exited=0", "stop-all"},
		{"sandbox died before anything ran", never, "a", "s0:notready", "sandbox(1) start(a)"},
		{"sandbox was removed, containers were not", always, "a", "a@s0:exited=1", "sandbox(0) start(a rc=1)"},
		{"network mode changed", always, "a", "s0:ready-host a@s0:running", "stop-all sandbox(1) start(a rc=1)"},
		{"two sandboxes, the one in use stays", always, "a", "s0:ready a@s0:running s1:ready", "stop-sandbox(s1)"},
		{"container in a sandbox that was left", always, "a b", "s0:notready a@s0:running s1:ready b@s1:running", "kill(a-1) start(a rc=1)"},

		{"sandbox without an address", always, "a", "s0:ready-no-ip a@s0:running", "stop-all sandbox(1) start(a rc=1)"},
		{"sandbox without an address, nothing ran", never, "a", "s0:ready-no-ip", "stop-all sandbox(1) start(a)"},
		{"sandbox of the host's network was another one", always, "a", "s0:ready-host", "stop-all sandbox(1) start(a)"},

		{"ephemeral is started beside the others", always, "a ephemeral:e", "s0:ready a@s0:running", "start(e)"},
		{"ephemeral is started while init runs", always, "init:i a ephemeral:e", "s0:ready i@s0:running", "start(e)"},
		{"ephemeral runs", always, "a ephemeral:e", "s0:ready a@s0:running e@s0:running", "nothing"},
		{"ephemeral is never started again", always, "a ephemeral:e", "s0:ready a@s0:running e@s0:exited=1", "nothing"},
		{"ephemeral is not started again in a new sandbox", always, "a ephemeral:e",
			"s0:notready a@s0:exited=1 e@s0:exited=0 s1:ready a@s1:running,rc=1", "nothing"},
		{"ephemeral comes after a new sandbox", always, "a ephemeral:e", "", "sandbox(0) start(a)"},
		{"ephemeral keeps no ended pod alive", never, "a ephemeral:e", "s0:ready a@s0:exited=0 e@s0:running", "stop-all"},
		{"ephemeral is not started in an ended pod", never, "a ephemeral:e", "s0:ready a@s0:exited=0", "stop-all"},

		{"container that the spec does not have", always, "a", "s0:ready a@s0:running x@s0:running", "kill(x-2)"},
		{"older container of the same name", always, "a", "s0:ready a@s0:running a@s0:running,rc=1", "kill(a-1)"},

		{"first crash restarts at once", always, "a", "s0:ready a@s0:exited=1,ended=0s", "start(a rc=1)"},
		{"second crash waits 10 s", always, "a", "s0:ready a@s0:exited=1,rc=1,ended=1s", "wait(a 9s of 10s)"},
		{"second crash, 10 s later", always, "a", "s0:ready a@s0:exited=1,rc=1,ended=10s", "start(a rc=2)"},
		{"fourth crash waits 40 s", always, "a", "s0:ready a@s0:exited=1,rc=3,ended=1s", "wait(a 39s of 40s)"},
		{"crashes wait 5 min at most", always, "a", "s0:ready a@s0:exited=1,rc=50,ended=1s", "wait(a 4m59s of 5m0s)"},
		{"a long run forgets the crashes", always, "a", "s0:ready a@s0:exited=1,rc=50,ended=1s,ran=10m", "start(a rc=51)"},
		{"one waits, another starts", always, "a b", "s0:ready a@s0:exited=1,rc=1,ended=4s b@s0:exited=1", "start(b rc=1) wait(a 6s of 10s)"},
		{"clock was set back", always, "a", "s0:ready a@s0:exited=1,rc=1,ended=-1h", "start(a rc=2)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := podviewtest.Pod(test.policy, test.containers)
			got := decide.Pod(pod, podviewtest.Status(pod, test.observed), decide.Facts{Now: now})
			if format(got) != test.want {
				t.Errorf("\npod      %s %s\nobserved %s\ngot      %s\nwant     %s", test.policy, test.containers, test.observed, format(got), test.want)
			}
		})
	}
}

// TestAClockThatIsSetLengthensNoBackoffByMoreThanItself checks that a worker that returns after the announced delay, by
// the monotonic clock, does not have to wait again and again.
func TestAClockThatIsSetLengthensNoBackoffByMoreThanItself(t *testing.T) {
	const backoff = 40 * time.Second
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	status := podviewtest.Status(pod, "s0:ready a@s0:exited=1,rc=3,ended=0s")
	for _, step := range []time.Duration{
		-24 * time.Hour, -time.Minute, -39 * time.Second, -time.Second, 0, time.Second, time.Minute, 24 * time.Hour,
	} {
		waited := time.Second // then the clock is set
		for {
			facts := decide.Facts{Now: now.Add(waited + step)}
			got := decide.Pod(pod, status, facts)
			if len(got.Start) == 1 {
				break
			}
			waited += got.Wait[0].Until.Sub(facts.Now)
			if waited > 2*backoff {
				t.Errorf("the clock was set by %v, and a back-off of %v lasts %v and goes on", step, backoff, waited)
				break
			}
		}
		if step >= -time.Second && step <= 0 && waited < backoff {
			t.Errorf("the clock was set by %v, and a back-off of %v lasts %v only", step, backoff, waited)
		}
	}
}

func TestChangedSpecRestartsThatContainerOnly(t *testing.T) {
	for _, policy := range []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyNever} {
		pod := podviewtest.Pod(policy, "a b")
		status := podviewtest.Status(pod, "s0:ready a@s0:running,rc=4 b@s0:running")
		pod.Spec.Containers[0].Image = "image:2"
		got := decide.Pod(pod, status, decide.Facts{Now: now})
		if want := "kill(a-1) start(a rc=5)"; format(got) != want {
			t.Errorf("%s: got %s, want %s", policy, format(got), want)
		}
	}
}

// TestAContainerThatIsReplacedIsStartedAgain checks that also if the process that killed it was itself killed.
func TestAContainerThatIsReplacedIsStartedAgain(t *testing.T) {
	for _, policy := range []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever} {
		pod := podviewtest.Pod(policy, "a b")
		status := podviewtest.Status(pod, "s0:ready a@s0:exited=0 b@s0:running")
		pod.Spec.Containers[0].Image = "image:2"
		facts := decide.Facts{Now: now, Replaced: func(id string) bool { return id == "a-1" }}
		if got, want := format(decide.Pod(pod, status, facts)), "start(a rc=1)"; got != want {
			t.Errorf("%s: got %s, want %s", policy, got, want)
		}
		facts.Replaced = func(id string) bool { return id == "b-2" }
		if got, want := format(decide.Pod(pod, status, facts)), "nothing"; policy != v1.RestartPolicyAlways && got != want {
			t.Errorf("%s, it ended by itself: got %s, want %s", policy, got, want)
		}
	}
}

func TestChangedSpecIsNotHeldBackByTheCrashesBefore(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	status := podviewtest.Status(pod, "s0:ready a@s0:exited=1,rc=9,ended=1s")
	pod.Spec.Containers[0].Image = "image:2"
	got := decide.Pod(pod, status, decide.Facts{Now: now})
	if want := "start(a rc=10)"; format(got) != want {
		t.Fatalf("got %s, want %s", format(got), want)
	}
	if got.Start[0].Restart.Step != 0 {
		t.Errorf("back-off step = %d, want a new row", got.Start[0].Restart.Step)
	}
}

func TestBackoffStepIsOfThePresentRowOfCrashes(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	got := decide.Pod(pod, podviewtest.Status(pod, "s0:ready a@s0:exited=1,rc=9,ran=11m"), decide.Facts{Now: now})
	if len(got.Start) != 1 || got.Start[0].Restart.Count != 10 || got.Start[0].Restart.Step != 1 {
		t.Fatalf("got %+v, want restart count 10 at step 1", got.Start)
	}
}

func TestConfiguredLongestBackoff(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	status := podviewtest.Status(pod, "s0:ready a@s0:exited=1,rc=50,ended=1s")
	got := decide.Pod(pod, status, decide.Facts{Now: now, BackoffMax: 30 * time.Second})
	if want := "wait(a 29s of 30s)"; format(got) != want {
		t.Fatalf("got %s, want %s", format(got), want)
	}
}

func TestTheEventOfAKillSaysWhetherTheContainerIsRestarted(t *testing.T) {
	own := v1.ContainerRestartPolicyNever
	for name, test := range map[string]struct {
		policy v1.RestartPolicy
		own    *v1.ContainerRestartPolicy
		rules  []v1.ContainerRestartRule
		want   string
	}{
		"Always":        {v1.RestartPolicyAlways, nil, nil, "Container a failed liveness probe, will be restarted"},
		"OnFailure":     {v1.RestartPolicyOnFailure, nil, nil, "Container a failed liveness probe, will be restarted"},
		"Never":         {v1.RestartPolicyNever, nil, nil, "Container a failed liveness probe"},
		"own policy":    {v1.RestartPolicyAlways, &own, nil, "Container a failed liveness probe"},
		"not by a rule": {v1.RestartPolicyAlways, &own, []v1.ContainerRestartRule{rule("restart in 137")}, "Container a failed liveness probe"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podviewtest.Pod(test.policy, "a")
			c := &pod.Spec.Containers[0]
			c.LivenessProbe, c.RestartPolicy, c.RestartPolicyRules = &v1.Probe{}, test.own, test.rules
			facts := decide.Facts{Now: now, Liveness: func(string) decide.ProbeResult { return decide.Failure }}
			got := decide.Pod(pod, podviewtest.Status(pod, "s0:ready a@s0:running"), facts)
			if len(got.Kill) != 1 || got.Kill[0].Message != test.want {
				t.Errorf("got %+v, want the message %q", got.Kill, test.want)
			}
		})
	}
}

// rule parses a restart rule of a container: "restart in 1 2", "all notin 0".
func rule(words string) v1.ContainerRestartRule {
	fields := strings.Fields(words)
	actions := map[string]v1.ContainerRestartRuleAction{
		"restart": v1.ContainerRestartRuleActionRestart, "all": v1.ContainerRestartRuleActionRestartAllContainers,
	}
	operators := map[string]v1.ContainerRestartRuleOnExitCodesOperator{
		"in": v1.ContainerRestartRuleOnExitCodesOpIn, "notin": v1.ContainerRestartRuleOnExitCodesOpNotIn,
	}
	codes := &v1.ContainerRestartRuleOnExitCodes{Operator: operators[fields[1]]}
	for _, field := range fields[2:] {
		code, err := strconv.ParseInt(field, 10, 32)
		if err != nil {
			panic(err)
		}
		codes.Values = append(codes.Values, int32(code))
	}
	return v1.ContainerRestartRule{Action: actions[fields[0]], ExitCodes: codes}
}

func TestContainersOwnPolicyAndRules(t *testing.T) {
	const always, onFailure = v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure
	const never = v1.ContainerRestartPolicyNever
	for _, test := range []struct {
		name     string
		pod      v1.RestartPolicy
		own      v1.ContainerRestartPolicy
		rules    []string
		observed string
		want     string
	}{
		{"own policy Never", v1.RestartPolicyAlways, never, nil, "s0:ready a@s0:exited=1 b@s0:running", "nothing"},
		{"own policy OnFailure, success", v1.RestartPolicyAlways, onFailure, nil, "s0:ready a@s0:exited=0 b@s0:running", "nothing"},
		{"own policy OnFailure, failure", v1.RestartPolicyNever, onFailure, nil, "s0:ready a@s0:exited=1 b@s0:running", "start(a rc=1)"},
		{"own policy Always in a Never pod", v1.RestartPolicyNever, always, nil, "s0:ready a@s0:exited=0 b@s0:exited=0", "start(a rc=1)"},
		{"rule of the code", v1.RestartPolicyAlways, never, []string{"restart in 42"}, "s0:ready a@s0:exited=42 b@s0:running", "start(a rc=1)"},
		{"rule of another code", v1.RestartPolicyAlways, never, []string{"restart in 42"}, "s0:ready a@s0:exited=1 b@s0:running", "nothing"},
		{"rule of all but a code", v1.RestartPolicyNever, never, []string{"restart notin 0 1"}, "s0:ready a@s0:exited=2 b@s0:running", "start(a rc=1)"},
		{"a rule is held back, too", v1.RestartPolicyNever, never, []string{"restart in 1"},
			"s0:ready a@s0:exited=1,rc=2,ended=1s b@s0:running", "wait(a 19s of 20s)"},
		{"a rule outlives the sandbox", v1.RestartPolicyNever, never, []string{"restart in 7"},
			"s0:notready a@s0:exited=7 b@s0:exited=0", "sandbox(1) start(a rc=1)"},
		{"the first rule holds", v1.RestartPolicyNever, never, []string{"restart in 1", "all in 1 2"},
			"s0:ready a@s0:exited=1 b@s0:running", "start(a rc=1)"},
		{"a rule restarts all", v1.RestartPolicyNever, never, []string{"restart in 1", "all in 1 2"},
			"s0:ready a@s0:exited=2 b@s0:running", "kill(b-2) reset(b-2) reset(a-1) start(a rc=1) start(b rc=1)"},
		{"all again, those that had ended too", v1.RestartPolicyNever, never, []string{"all in 2"},
			"s0:ready b@s0:exited=0 a@s0:exited=2", "reset(b-1) reset(a-2) start(a rc=1) start(b rc=1)"},
		{"all again waits as any crash", v1.RestartPolicyNever, never, []string{"all in 2"},
			"s0:ready a@s0:exited=2,rc=1,ended=1s b@s0:running", "wait(a 9s of 10s)"},
		{"interrupted while all are removed", v1.RestartPolicyNever, never, []string{"all in 2"},
			"s0:ready a@s0:exited=2", "reset(a-1) start(a rc=1) start(b)"},
		{"not for what ended in a sandbox that was left", v1.RestartPolicyNever, never, []string{"all in 2"},
			"s0:notready a@s0:exited=2 s1:ready b@s1:running", "start(a rc=1)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := podviewtest.Pod(test.pod, "a b")
			pod.Spec.Containers[0].RestartPolicy = &test.own
			for _, words := range test.rules {
				pod.Spec.Containers[0].RestartPolicyRules = append(pod.Spec.Containers[0].RestartPolicyRules, rule(words))
			}
			if got := format(decide.Pod(pod, podviewtest.Status(pod, test.observed), decide.Facts{Now: now})); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestAllContainersBeginAgainFromTheFirstInitContainer(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	pod := podviewtest.Pod(v1.RestartPolicyNever, "init:i sidecar:s a b ephemeral:e")
	pod.Spec.Containers[0].RestartPolicy = &never
	pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{rule("all in 88")}
	status := podviewtest.Status(pod, "s0:ready i@s0:exited=0 s@s0:running e@s0:running a@s0:exited=88,rc=4,ended=81s b@s0:running")
	got := decide.Pod(pod, status, decide.Facts{Now: now})
	// The sidecar does not wait for the others, because nothing gets a grace period. The container that requested the
	// restart is removed last.
	if want := "kill(b-5) kill(s-2) reset(b-5) reset(i-1) reset(s-2) reset(a-4) start(i rc=1)"; format(got) != want {
		t.Fatalf("got %s, want %s", format(got), want)
	}
	if step := got.Start[0].Restart.Step; step != 5 {
		t.Errorf("back-off step %d, want that of the container which asked", step)
	}
	// When its record has been removed later, the count of its crashes continues.
	status = podviewtest.Status(pod, "s0:ready i@s0:exited=0,rc=5 s@s0:running,rc=5 e@s0:running")
	got = decide.Pod(pod, status, decide.Facts{Now: now})
	if want := "start(a) start(b)"; format(got) != want || got.Start[0].Restart.Step != 5 || got.Start[1].Restart.Step != 0 {
		t.Errorf("got %s with steps %+v, want %s", format(got), got.Start, want)
	}
	pod.DeletionTimestamp = &metav1.Time{Time: now}
	status = podviewtest.Status(pod, "s0:ready a@s0:exited=88 b@s0:running")
	if got := format(decide.Pod(pod, status, decide.Facts{Now: now})); got != "nothing" {
		t.Errorf("a deleted pod begins again: %s", got)
	}
}

func TestOneOfTwoContainersCanRestartThePod(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	pod := podviewtest.Pod(v1.RestartPolicyNever, "a b")
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].RestartPolicy = &never
		pod.Spec.Containers[i].RestartPolicyRules = []v1.ContainerRestartRule{rule("all in 1")}
	}
	for observed, want := range map[string]string{
		"s0:ready a@s0:exited=1 b@s0:exited=1,rc=3,ended=1s":               "reset(a-1) reset(b-2) start(a rc=1) start(b rc=4)",
		"s0:ready a@s0:exited=1,rc=1,ended=1s b@s0:exited=1,rc=3,ended=1s": "wait(a 9s of 10s) wait(b 39s of 40s)",
	} {
		if got := format(decide.Pod(pod, podviewtest.Status(pod, observed), decide.Facts{Now: now})); got != want {
			t.Errorf("%s: got %s, want %s", observed, got, want)
		}
	}
}

func TestAFailedInitContainerMayRestartAll(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	pod := podviewtest.Pod(v1.RestartPolicyNever, "init:i init:j a")
	pod.Spec.InitContainers[1].RestartPolicy = &never
	pod.Spec.InitContainers[1].RestartPolicyRules = []v1.ContainerRestartRule{rule("all in 1")}
	for observed, want := range map[string]string{
		"s0:ready i@s0:exited=0 j@s0:exited=1": "reset(i-1) reset(j-2) start(i rc=1)",
		"s0:ready i@s0:exited=0 j@s0:exited=3": "stop-all",
	} {
		if got := format(decide.Pod(pod, podviewtest.Status(pod, observed), decide.Facts{Now: now})); got != want {
			t.Errorf("%s: got %s, want %s", observed, got, want)
		}
	}
}

func TestADeletedPodStartsNothing(t *testing.T) {
	for observed, want := range map[string]string{
		"":                                     "nothing",
		"s0:ready a@s0:exited=1 b@s0:running":  "nothing",
		"s0:ready a@s0:exited=1 b@s0:exited=0": "stop-all",
	} {
		pod := podviewtest.Pod(v1.RestartPolicyAlways, "a b")
		pod.DeletionTimestamp = &metav1.Time{Time: now}
		if got := format(decide.Pod(pod, podviewtest.Status(pod, observed), decide.Facts{Now: now})); got != want {
			t.Errorf("%q: got %s, want %s", observed, got, want)
		}
	}
}

func TestAPodThatWasNotObservedIsNew(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	var none *lifecyclev1.PodStatus
	if got, want := format(decide.Pod(pod, none, decide.Facts{Now: now})), "sandbox(0) start(a)"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}
