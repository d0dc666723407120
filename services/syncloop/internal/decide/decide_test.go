package decide_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/observedtest"
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

		{"container that the spec does not have", always, "a", "s0:ready a@s0:running x@s0:running", "kill(x-2)"},
		{"older container of the same name", always, "a", "s0:ready a@s0:running a@s0:running,rc=1", "kill(a-1)"},

		{"first crash restarts at once", always, "a", "s0:ready a@s0:exited=1,ended=0s", "start(a rc=1)"},
		{"second crash waits 10 s", always, "a", "s0:ready a@s0:exited=1,rc=1,ended=1s", "wait(a 9s of 10s)"},
		{"second crash, 10 s later", always, "a", "s0:ready a@s0:exited=1,rc=1,ended=10s", "start(a rc=2)"},
		{"fourth crash waits 40 s", always, "a", "s0:ready a@s0:exited=1,rc=3,ended=1s", "wait(a 39s of 40s)"},
		{"crashes wait 5 min at most", always, "a", "s0:ready a@s0:exited=1,rc=50,ended=1s", "wait(a 4m59s of 5m0s)"},
		{"a long run forgets the crashes", always, "a", "s0:ready a@s0:exited=1,rc=50,ended=1s,ran=10m", "start(a rc=51)"},
		{"one waits, another starts", always, "a b", "s0:ready a@s0:exited=1,rc=1,ended=4s b@s0:exited=1", "start(b rc=1) wait(a 6s of 10s)"},
		{"clock was set back", always, "a", "s0:ready a@s0:exited=1,rc=1,ended=-1h", "wait(a 10s of 10s)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := observedtest.Pod(test.policy, test.containers)
			got := decide.Pod(pod, observedtest.Status(pod, test.observed), decide.Facts{Now: now})
			if say(got) != test.want {
				t.Errorf("\npod      %s %s\nobserved %s\ngot      %s\nwant     %s", test.policy, test.containers, test.observed, say(got), test.want)
			}
		})
	}
}

func TestChangedSpecRestartsThatContainerOnly(t *testing.T) {
	for _, policy := range []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyNever} {
		pod := observedtest.Pod(policy, "a b")
		status := observedtest.Status(pod, "s0:ready a@s0:running,rc=4 b@s0:running")
		pod.Spec.Containers[0].Image = "image:2"
		got := decide.Pod(pod, status, decide.Facts{Now: now})
		if want := "kill(a-1) start(a rc=5)"; say(got) != want {
			t.Errorf("%s: got %s, want %s", policy, say(got), want)
		}
	}
}

func TestChangedSpecIsNotHeldBackByTheCrashesBefore(t *testing.T) {
	pod := observedtest.Pod(v1.RestartPolicyAlways, "a")
	status := observedtest.Status(pod, "s0:ready a@s0:exited=1,rc=9,ended=1s")
	pod.Spec.Containers[0].Image = "image:2"
	got := decide.Pod(pod, status, decide.Facts{Now: now})
	if want := "start(a rc=10)"; say(got) != want {
		t.Fatalf("got %s, want %s", say(got), want)
	}
	if got.Start[0].Restart.Step != 0 {
		t.Errorf("back-off step = %d, want a new row", got.Start[0].Restart.Step)
	}
}

func TestBackoffStepIsOfThePresentRowOfCrashes(t *testing.T) {
	pod := observedtest.Pod(v1.RestartPolicyAlways, "a")
	got := decide.Pod(pod, observedtest.Status(pod, "s0:ready a@s0:exited=1,rc=9,ran=11m"), decide.Facts{Now: now})
	if len(got.Start) != 1 || got.Start[0].Restart.Count != 10 || got.Start[0].Restart.Step != 1 {
		t.Fatalf("got %+v, want restart count 10 at step 1", got.Start)
	}
}

func TestConfiguredLongestBackoff(t *testing.T) {
	pod := observedtest.Pod(v1.RestartPolicyAlways, "a")
	status := observedtest.Status(pod, "s0:ready a@s0:exited=1,rc=50,ended=1s")
	got := decide.Pod(pod, status, decide.Facts{Now: now, BackoffMax: 30 * time.Second})
	if want := "wait(a 29s of 30s)"; say(got) != want {
		t.Fatalf("got %s, want %s", say(got), want)
	}
}

func TestProbesKill(t *testing.T) {
	failed := func(string) decide.ProbeResult { return decide.Failure }
	for name, test := range map[string]struct {
		probe func(*v1.Container)
		facts decide.Facts
		want  string
	}{
		"liveness":           {func(c *v1.Container) { c.LivenessProbe = &v1.Probe{} }, decide.Facts{Now: now, Liveness: failed}, "kill(a-1)"},
		"startup":            {func(c *v1.Container) { c.StartupProbe = &v1.Probe{} }, decide.Facts{Now: now, Startup: failed}, "kill(a-1)"},
		"without a prober":   {func(c *v1.Container) { c.LivenessProbe = &v1.Probe{} }, decide.Facts{Now: now}, "nothing"},
		"probe taken out":    {func(*v1.Container) {}, decide.Facts{Now: now, Liveness: failed}, "nothing"},
		"readiness does not": {func(c *v1.Container) { c.ReadinessProbe = &v1.Probe{} }, decide.Facts{Now: now, Liveness: failed}, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := observedtest.Pod(v1.RestartPolicyAlways, "a")
			test.probe(&pod.Spec.Containers[0])
			if got := say(decide.Pod(pod, observedtest.Status(pod, "s0:ready a@s0:running"), test.facts)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestSidecarWithAStartupProbeHoldsBackTheNext(t *testing.T) {
	pod := observedtest.Pod(v1.RestartPolicyAlways, "sidecar:s a")
	pod.Spec.InitContainers[0].StartupProbe = &v1.Probe{}
	status := observedtest.Status(pod, "s0:ready s@s0:running")
	for result, want := range map[decide.ProbeResult]string{decide.Unknown: "nothing", decide.Success: "start(a)", decide.Failure: "kill(s-1)"} {
		facts := decide.Facts{Now: now, Startup: func(string) decide.ProbeResult { return result }}
		if got := say(decide.Pod(pod, status, facts)); got != want {
			t.Errorf("result %d: got %s, want %s", result, got, want)
		}
	}
}

func TestContainersOwnPolicyAndRules(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	rule := v1.ContainerRestartRule{
		Action:    v1.ContainerRestartRuleActionRestart,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}
	for observed, want := range map[string]string{
		"s0:ready a@s0:exited=1 b@s0:running":  "nothing",
		"s0:ready a@s0:exited=42 b@s0:running": "start(a rc=1)",
	} {
		pod := observedtest.Pod(v1.RestartPolicyAlways, "a b")
		pod.Spec.Containers[0].RestartPolicy = &never
		pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{rule}
		if got := say(decide.Pod(pod, observedtest.Status(pod, observed), decide.Facts{Now: now})); got != want {
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
		pod := observedtest.Pod(v1.RestartPolicyAlways, "a b")
		pod.DeletionTimestamp = &metav1.Time{Time: now}
		if got := say(decide.Pod(pod, observedtest.Status(pod, observed), decide.Facts{Now: now})); got != want {
			t.Errorf("%q: got %s, want %s", observed, got, want)
		}
	}
}

func TestAPodThatWasNotObservedIsNew(t *testing.T) {
	pod := observedtest.Pod(v1.RestartPolicyAlways, "a")
	var none *lifecyclev1.PodStatus
	if got, want := say(decide.Pod(pod, none, decide.Facts{Now: now})), "sandbox(0) start(a)"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}
