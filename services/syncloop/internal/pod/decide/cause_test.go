package decide_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
)

// causes formats the started containers and their causes, one per line.
func causes(a decide.Actions) string {
	var lines []string
	for _, s := range a.Start {
		lines = append(lines, fmt.Sprintf("%s %d: %s", s.Container.Name, s.Restart.Count, s.Restart.Cause))
	}
	return strings.Join(lines, "\n")
}

// cameBack is a pod all of whose containers have ended with its earlier life.
func cameBack(_ *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
	f.Replaced = func(string) bool { return true }
}

func TestEveryStartHasItsCause(t *testing.T) {
	failed := func(string) decide.ProbeResult { return decide.Failure }
	const noSandbox, notReady = "sandbox replaced (no pod sandbox exists)", "sandbox replaced (pod sandbox is not ready)"
	for _, test := range []struct {
		name, containers, observed string
		// change modifies the pod, its observed status or the facts.
		change func(*v1.Pod, *lifecyclev1.PodStatus, *decide.Facts)
		want   string
	}{
		{"new pod", "a b", "", nil, "a 0: first start\nb 0: first start"},
		{"new init container", "init:i a", "", nil, "i 0: first start"},
		{"after its init containers", "init:i a", "s0:ready i@s0:exited=0", nil, "a 0: first start"},
		{"new ephemeral container", "a ephemeral:e", "s0:ready a@s0:running", nil, "e 0: first start"},

		{"its end", "a", "s0:ready a@s0:exited=3,rc=4", nil, "a 5: exited with 3"},
		{"its end has a reason", "a", "s0:ready a@s0:exited=137", func(_ *v1.Pod, s *lifecyclev1.PodStatus, _ *decide.Facts) {
			s.Containers[0].Reason = "OOMKilled"
		}, "a 1: exited with 137 (OOMKilled)"},
		{"end of an init container", "init:i a", "s0:ready i@s0:exited=1", nil, "i 1: exited with 1"},
		{"end of a sidecar", "sidecar:s a", "s0:ready s@s0:exited=0 a@s0:running", nil, "s 1: exited with 0"},
		{"created and never started", "init:i a", "s0:ready i@s0:created", nil, "i 1: created and never started"},

		{"changed while it ran", "a", "s0:ready a@s0:running", changeImage, "a 1: spec changed"},
		{"changed after its end", "a", "s0:ready a@s0:exited=1", changeImage, "a 1: spec changed, exited with 1"},
		{"changed, killed, and forgotten", "a", "s0:ready a@s0:exited=137,ended=0s", changeImage, "a 1: spec changed, exited with 137"},

		{"killed for its liveness", "a", "s0:ready a@s0:exited=137", func(p *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			p.Spec.Containers[0].LivenessProbe, f.Liveness = &v1.Probe{}, failed
		}, "a 1: liveness probe failed, exited with 137"},
		{"killed before it had started", "a", "s0:ready a@s0:exited=137", func(p *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			p.Spec.Containers[0].StartupProbe, f.Startup = &v1.Probe{}, failed
		}, "a 1: startup probe failed, exited with 137"},
		{"no probe asks any more", "a", "s0:ready a@s0:exited=137", func(_ *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			f.Liveness, f.Startup = failed, failed
		}, "a 1: exited with 137"},

		{"sandbox died", "a b", "s0:notready a@s0:running b@s0:exited=1", nil, "a 1: " + notReady + "\nb 1: " + notReady + ", exited with 1"},
		{"sandbox died, init first", "init:i a", "s0:notready i@s0:exited=0 a@s0:exited=255", nil, "i 1: " + notReady + ", exited with 0"},
		{"in the new sandbox", "init:i a", "s0:notready i@s0:exited=0 a@s0:exited=255 s1:ready i@s1:exited=0,rc=1",
			func(_ *v1.Pod, s *lifecyclev1.PodStatus, _ *decide.Facts) {
				s.Sandboxes[0].Annotations = map[string]string{podlabels.StartCause: "pod sandbox is not ready"}
			}, "a 1: " + notReady + ", exited with 255"},
		{"in a sandbox of which nothing is known", "a", "s0:notready a@s0:exited=1 s1:ready", nil, "a 1: sandbox replaced, exited with 1"},
		{"network mode changed", "a", "s0:ready-host a@s0:running", nil, "a 1: sandbox replaced (network namespace mode changed and sandbox needs to be recreated)"},
		{"no address", "a", "s0:ready-no-ip a@s0:running", nil, "a 1: sandbox replaced (pod sandbox has no IP address)"},
		{"sandbox removed alone", "a", "a@s0:exited=1", nil, "a 1: " + noSandbox + ", exited with 1"},
		{"sandbox died, state unknown", "a", "s0:notready a@s0:unknown", nil, "a 1: " + notReady + ", state unknown"},
		{"sandbox died before anything ran", "a", "s0:notready", nil, "a 0: first start"},
		{"left running in another sandbox", "a b", "s0:notready a@s0:running s1:ready b@s1:running", nil, "a 1: sandbox replaced"},

		{"came back while it ended", "a", "s0:notready a@s0:exited=143,rc=1,ended=0s", cameBack, "a 2: the pod came back, exited with 143"},
		{"came back changed", "a", "s0:notready a@s0:exited=143,rc=1,ended=0s",
			func(p *v1.Pod, s *lifecyclev1.PodStatus, f *decide.Facts) {
				cameBack(p, s, f)
				changeImage(p, s, f)
			}, "a 2: the pod came back, spec changed, exited with 143"},
		{"came back, in its sandbox", "init:i a", "s0:notready i@s0:exited=0 a@s0:exited=0 s1:ready i@s1:exited=0,rc=1", cameBack,
			"a 1: the pod came back, exited with 0"},

		{"all removed", "a", "", logged("a 3"), "a 3: the runtime has no record of the one before"},
		{"one removed", "a b", "s0:ready b@s0:running", logged("a 1"), "a 1: the runtime has no record of the one before"},
		{"ephemeral removed", "a ephemeral:e", "s0:ready a@s0:running", logged("e 1"), "e 1: the runtime has no record of the one before"},
		{"the last one removed", "a", "s0:ready a@s0:exited=1,rc=1,ended=1h", logged("a 3"), "a 3: the runtime has no record of the one before"},
		{"logs of what the runtime has", "a", "s0:ready a@s0:exited=1,rc=1,ended=1h", logged("a 2"), "a 2: exited with 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := podviewtest.Pod(v1.RestartPolicyAlways, test.containers)
			status, facts := podviewtest.Status(pod, test.observed), decide.Facts{Now: now}
			if test.change != nil {
				test.change(pod, status, &facts)
			}
			if got := causes(decide.Pod(pod, status, facts)); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func changeImage(pod *v1.Pod, _ *lifecyclev1.PodStatus, _ *decide.Facts) {
	pod.Spec.Containers[0].Image = "image:2"
}

// logged sets the number of a container's next log: "a 3".
func logged(words string) func(*v1.Pod, *lifecyclev1.PodStatus, *decide.Facts) {
	var name string
	var next int
	if _, err := fmt.Sscan(words, &name, &next); err != nil {
		panic(err)
	}
	return func(_ *v1.Pod, _ *lifecyclev1.PodStatus, facts *decide.Facts) {
		facts.Logged = func(container string) int {
			if container == name {
				return next
			}
			return 0
		}
	}
}

// TestAPodThatBeginsAgainNamesTheContainersThatRequireIt checks that containers whose records were removed for a
// restart of the pod have the cause of that restart.
func TestAPodThatBeginsAgainNamesTheContainersThatRequireIt(t *testing.T) {
	never := v1.ContainerRestartPolicyNever
	pod := podviewtest.Pod(v1.RestartPolicyNever, "init:i a b")
	pod.Spec.Containers[0].RestartPolicy = &never
	pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{rule("all in 88")}
	facts := decide.Facts{Now: now, Logged: func(string) int { return 1 }}
	decided := decide.Pod(pod, podviewtest.Status(pod, "s0:ready i@s0:exited=0 a@s0:exited=88 b@s0:running"), facts)
	if got, want := causes(decided), "i 1: a rule restarts all containers (a ended with 88), exited with 0"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	status := podviewtest.Status(pod, "s0:ready i@s0:exited=0,rc=1")
	status.Containers[0].Annotations[podlabels.StartCause] = decided.Start[0].Restart.Cause
	if got, want := causes(decide.Pod(pod, status, facts)), "a 1: a rule restarts all containers\nb 1: a rule restarts all containers"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// A container that is removed later has another cause.
	status = podviewtest.Status(pod, "s0:ready i@s0:exited=0,rc=1 a@s0:running,rc=1")
	status.Containers[1].Annotations[podlabels.StartCause] = decided.Start[0].Restart.Cause
	if got, want := causes(decide.Pod(pod, status, facts)), "b 1: the runtime has no record of the one before"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
