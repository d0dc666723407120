package decide_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
)

func TestProbesKill(t *testing.T) {
	failed := func(string) decide.ProbeResult { return decide.Failure }
	for name, test := range map[string]struct {
		probe func(*v1.Container)
		facts decide.Facts
		want  string
	}{
		"liveness":           {func(c *v1.Container) { c.LivenessProbe = &v1.Probe{} }, decide.Facts{Now: now, Liveness: failed}, "kill(a-1) start(a rc=1)"},
		"startup":            {func(c *v1.Container) { c.StartupProbe = &v1.Probe{} }, decide.Facts{Now: now, Startup: failed}, "kill(a-1) start(a rc=1)"},
		"without a prober":   {func(c *v1.Container) { c.LivenessProbe = &v1.Probe{} }, decide.Facts{Now: now}, "nothing"},
		"probe taken out":    {func(*v1.Container) {}, decide.Facts{Now: now, Liveness: failed}, "nothing"},
		"readiness does not": {func(c *v1.Container) { c.ReadinessProbe = &v1.Probe{} }, decide.Facts{Now: now, Liveness: failed}, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
			test.probe(&pod.Spec.Containers[0])
			if got := format(decide.Pod(pod, podviewtest.Status(pod, "s0:ready a@s0:running"), test.facts)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// TestAProbeRestartsInOneStep checks that the back-off counts from the previous exit, as the kubelet's does, because a
// container that is killed for its probe has not crashed. The back-off grows with each previous exit.
func TestAProbeRestartsInOneStep(t *testing.T) {
	const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	for _, test := range []struct {
		name       string
		policy     v1.RestartPolicy
		containers string
		observed   string
		want       string
		step       int
	}{
		{"nothing has ended before", always, "live:a", "s0:ready a@s0:running", "kill(a-1) start(a rc=1)", 0},
		{"a container that exits 0", onFailure, "live:a", "s0:ready a@s0:running", "kill(a-1) start(a rc=1)", 0},
		{"a sidecar", never, "livesidecar:a b", "s0:ready a@s0:running b@s0:running", "kill(a-1) start(a rc=1)", 0},
		{"policy Never", never, "live:a", "s0:ready a@s0:running", "kill(a-1)", 0},
		{"the second time", always, "live:a", "s0:ready a@s0:exited=0,ended=1s a@s0:running,rc=1,step=0", "kill(a-2) start(a rc=2)", 1},
		{"the third time", always, "live:a", "s0:ready a@s0:exited=0,rc=1,ended=30s a@s0:running,rc=2,step=1", "kill(a-2) start(a rc=3)", 2},
		{"the third time is soon", always, "live:a", "s0:ready a@s0:exited=0,rc=1,ended=3s a@s0:running,rc=2,step=1", "kill(a-2) wait(a 7s of 10s)", 0},
		{"after a crash", always, "live:a", "s0:ready a@s0:exited=1,ended=3s a@s0:running,rc=1", "kill(a-2) wait(a 7s of 10s)", 0},
		{"crashes wait 5 min at most", always, "live:a", "s0:ready a@s0:exited=1,rc=8,ended=1m a@s0:running,rc=9", "kill(a-2) wait(a 4m0s of 5m0s)", 0},
		{"a long run forgets the crashes", always, "live:a", "s0:ready a@s0:exited=1,rc=8,ended=11m a@s0:running,rc=9,ran=10m", "kill(a-2) start(a rc=10)", 1},
		{"the newest end counts", always, "live:a", "s0:ready a@s0:exited=1,ended=1m a@s0:exited=1,rc=1,ended=15s a@s0:running,rc=2", "kill(a-3) wait(a 5s of 20s)", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := podviewtest.Pod(test.policy, test.containers)
			facts := decide.Facts{Now: now, Liveness: func(id string) decide.ProbeResult { return ofA(id, decide.Failure) }}
			got := decide.Pod(pod, podviewtest.Status(pod, test.observed), facts)
			if format(got) != test.want {
				t.Errorf("got %s, want %s", format(got), test.want)
			}
			if len(got.Start) == 1 && got.Start[0].Restart.Step != test.step {
				t.Errorf("back-off step %d, want %d", got.Start[0].Restart.Step, test.step)
			}
		})
	}
}

// TestAContainerThatAProbeHadKilled checks that the container is restarted unless its restart policy is Never, whatever
// its exit code is.
func TestAContainerThatAProbeHadKilled(t *testing.T) {
	const onFailure, never = v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	ownOnFailure, ownNever := v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever
	probes := map[string]func(*v1.Container, *decide.Facts, decide.ProbeResult){
		"liveness": func(c *v1.Container, facts *decide.Facts, result decide.ProbeResult) {
			c.LivenessProbe, facts.Liveness = &v1.Probe{}, func(id string) decide.ProbeResult { return ofA(id, result) }
		},
		"startup": func(c *v1.Container, facts *decide.Facts, result decide.ProbeResult) {
			c.StartupProbe, facts.Startup = &v1.Probe{}, func(id string) decide.ProbeResult { return ofA(id, result) }
		},
	}
	for _, test := range []struct {
		name     string
		policy   v1.RestartPolicy
		own      *v1.ContainerRestartPolicy
		result   decide.ProbeResult
		observed string
		want     string
	}{
		{"exits 0", onFailure, nil, decide.Failure, "s0:ready a@s0:exited=0", "start(a rc=1)"},
		{"exits 0 beside another", onFailure, nil, decide.Failure, "s0:ready a@s0:exited=0 b@s0:running", "start(a rc=1)"},
		{"exits 0, the probe was well", onFailure, nil, decide.Success, "s0:ready a@s0:exited=0", "stop-all"},
		{"exits 0, the probe was never run", onFailure, nil, decide.Unknown, "s0:ready a@s0:exited=0", "stop-all"},
		{"exits 0 again and waits", onFailure, nil, decide.Failure, "s0:ready a@s0:exited=0,rc=1,ended=3s", "wait(a 7s of 10s)"},
		{"exits 0, its sandbox is gone", onFailure, nil, decide.Failure, "s0:notready a@s0:exited=0", "sandbox(1) start(a rc=1)"},
		{"exits 0, own policy", never, &ownOnFailure, decide.Failure, "s0:ready a@s0:exited=0", "start(a rc=1)"},
		{"exits 0, policy Never", never, nil, decide.Failure, "s0:ready a@s0:exited=0", "stop-all"},
		{"exits 137, policy Never", never, nil, decide.Failure, "s0:ready a@s0:exited=137", "stop-all"},
		{"exits 0, own policy Never", onFailure, &ownNever, decide.Failure, "s0:ready a@s0:exited=0", "stop-all"},
	} {
		for probe, set := range probes {
			t.Run(probe+" "+test.name, func(t *testing.T) {
				containers := "a"
				if strings.Contains(test.observed, "b@") {
					containers = "a b"
				}
				pod, facts := podviewtest.Pod(test.policy, containers), decide.Facts{Now: now}
				pod.Spec.Containers[0].RestartPolicy = test.own
				set(&pod.Spec.Containers[0], &facts, test.result)
				if got := format(decide.Pod(pod, podviewtest.Status(pod, test.observed), facts)); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
			})
		}
	}
}

// TestASidecarThatAProbeHadKilled checks that the sidecar is restarted as after any other exit, also while the init
// containers run.
func TestASidecarThatAProbeHadKilled(t *testing.T) {
	for _, observed := range []string{"s0:ready s@s0:exited=0", "s0:ready s@s0:exited=0 a@s0:running"} {
		pod := podviewtest.Pod(v1.RestartPolicyOnFailure, "sidecar:s a")
		pod.Spec.InitContainers[0].LivenessProbe = &v1.Probe{}
		facts := decide.Facts{Now: now, Liveness: func(string) decide.ProbeResult { return decide.Failure }}
		if got, want := format(decide.Pod(pod, podviewtest.Status(pod, observed), facts)), "start(s rc=1)"; got != want {
			t.Errorf("%s: got %s, want %s", observed, got, want)
		}
	}
}

// ofA returns the result for containers named a, and no result for others.
func ofA(id string, result decide.ProbeResult) decide.ProbeResult {
	if strings.HasPrefix(id, "a-") {
		return result
	}
	return decide.Unknown
}

func TestSidecarWithAStartupProbeDelaysTheNext(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "sidecar:s a")
	pod.Spec.InitContainers[0].StartupProbe = &v1.Probe{}
	status := podviewtest.Status(pod, "s0:ready s@s0:running")
	for result, want := range map[decide.ProbeResult]string{decide.Unknown: "nothing", decide.Success: "start(a)", decide.Failure: "kill(s-1) start(s rc=1)"} {
		facts := decide.Facts{Now: now, Startup: func(string) decide.ProbeResult { return result }}
		if got := format(decide.Pod(pod, status, facts)); got != want {
			t.Errorf("result %d: got %s, want %s", result, got, want)
		}
	}
}
