package podstatus_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
)

var now = podviewtest.Now

// say formats the main parts of a status as one line: the phase, the true conditions and each container.
func format(s v1.PodStatus) string {
	words := []string{string(s.Phase)}
	short := map[v1.PodConditionType]string{
		v1.PodReadyToStartContainers: "sandbox", v1.PodInitialized: "initialized", v1.ContainersReady: "containers", v1.PodReady: "ready",
	}
	for _, c := range s.Conditions {
		if name := short[c.Type]; name != "" && c.Status == v1.ConditionTrue {
			words = append(words, "+"+name)
		}
	}
	for _, c := range append(append([]v1.ContainerStatus(nil), s.InitContainerStatuses...), s.ContainerStatuses...) {
		word := c.Name + "=" + sayState(c.State)
		if c.Ready {
			word += ",ready"
		}
		if c.RestartCount > 0 {
			word += fmt.Sprintf(",rc=%d", c.RestartCount)
		}
		if c.LastTerminationState.Terminated != nil {
			word += ",last=" + sayState(c.LastTerminationState)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func sayState(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("%s(%d)", s.Terminated.Reason, s.Terminated.ExitCode)
	case s.Waiting != nil:
		return "waiting(" + s.Waiting.Reason + ")"
	}
	return "?"
}

func TestGenerate(t *testing.T) {
	const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	backoff := map[string]podstatus.Reason{"a": {Reason: "CrashLoopBackOff", Message: "back-off 10s"}}
	initBackoff := map[string]podstatus.Reason{"i": {Reason: "CrashLoopBackOff"}}
	for _, test := range []struct {
		name       string
		policy     v1.RestartPolicy
		containers string
		observed   string
		in         podstatus.Inputs
		want       string
	}{
		{name: "new", policy: always, containers: "a", want: "Pending +initialized a=waiting(ContainerCreating)"},
		{name: "new with init", policy: always, containers: "init:i a", want: "Pending i=waiting(PodInitializing) a=waiting(PodInitializing)"},
		{name: "init runs", policy: always, containers: "init:i a", observed: "s0:ready i@s0:running",
			want: "Pending +sandbox i=running a=waiting(PodInitializing)"},
		{name: "init has ended", policy: always, containers: "init:i a", observed: "s0:ready i@s0:exited=0",
			want: "Pending +sandbox +initialized i=Completed(0),ready a=waiting(PodInitializing)"},
		{name: "init failed and waits", policy: always, containers: "init:i a", observed: "s0:ready i@s0:exited=1,rc=1", in: podstatus.Inputs{Reasons: initBackoff},
			want: "Pending +sandbox i=waiting(CrashLoopBackOff),rc=1,last=Error(1) a=waiting(PodInitializing)"},
		{name: "init failed for good", policy: never, containers: "init:i a", observed: "s0:ready i@s0:exited=1",
			want: "Failed +sandbox i=Error(1) a=waiting(PodInitializing)"},
		{name: "init was removed", policy: always, containers: "init:i a", observed: "s0:ready a@s0:running",
			want: "Running +sandbox +initialized +ready +containers i=Completed(0),ready a=running,ready"},
		{name: "sidecar up", policy: always, containers: "sidecar:s a", observed: "s0:ready s@s0:running",
			want: "Pending +sandbox +initialized s=running,ready a=waiting(PodInitializing)"},
		{name: "sidecar restarts beside ordinary ones", policy: always, containers: "sidecar:s a", observed: "s0:ready s@s0:exited=1 a@s0:running",
			want: "Running +sandbox +initialized s=Error(1) a=running,ready"},

		{name: "running", policy: always, containers: "b a", observed: "s0:ready a@s0:running b@s0:running",
			want: "Running +sandbox +initialized +ready +containers a=running,ready b=running,ready"},
		{name: "one of two", policy: always, containers: "a b", observed: "s0:ready a@s0:running",
			want: "Pending +sandbox +initialized a=running,ready b=waiting(ContainerCreating)"},
		{name: "crashed, about to be restarted", policy: always, containers: "a", observed: "s0:ready a@s0:exited=1",
			want: "Running +sandbox +initialized a=Error(1)"},
		{name: "crashed, waits", policy: always, containers: "a", observed: "s0:ready a@s0:exited=1,rc=1", in: podstatus.Inputs{Reasons: backoff},
			want: "Running +sandbox +initialized a=waiting(CrashLoopBackOff),rc=1,last=Error(1)"},
		{name: "restarted", policy: always, containers: "a", observed: "s0:ready a@s0:exited=2 a@s0:running,rc=1",
			want: "Running +sandbox +initialized +ready +containers a=running,ready,rc=1,last=Error(2)"},
		{name: "reason of a container that runs again is out of date", policy: always, containers: "a", observed: "s0:ready a@s0:running", in: podstatus.Inputs{Reasons: backoff},
			want: "Running +sandbox +initialized +ready +containers a=running,ready"},
		{name: "image cannot be pulled", policy: always, containers: "a", observed: "s0:ready",
			in:   podstatus.Inputs{Reasons: map[string]podstatus.Reason{"a": {Reason: "ErrImagePull"}}},
			want: "Pending +sandbox +initialized a=waiting(ErrImagePull)"},

		{name: "succeeded", policy: never, containers: "a b", observed: "s0:notready a@s0:exited=0 b@s0:exited=0",
			want: "Succeeded +initialized a=Completed(0) b=Completed(0)"},
		{name: "failed", policy: never, containers: "a b", observed: "s0:notready a@s0:exited=0 b@s0:exited=3",
			want: "Failed +initialized a=Completed(0) b=Error(3)"},
		{name: "OnFailure succeeded", policy: onFailure, containers: "a", observed: "s0:ready a@s0:exited=0",
			want: "Succeeded +sandbox +initialized a=Completed(0)"},
		{name: "OnFailure goes on", policy: onFailure, containers: "a", observed: "s0:ready a@s0:exited=1", want: "Running +sandbox +initialized a=Error(1)"},
		{name: "OnFailure goes on after a kill for a probe", policy: onFailure, containers: "live:a", observed: "s0:ready a@s0:exited=0",
			in:   podstatus.Inputs{Unhealthy: func(string) bool { return true }},
			want: "Running +sandbox +initialized a=waiting(ContainerCreating),last=Completed(0)"},
		{name: "OnFailure goes on after a kill for a probe, as it says itself", policy: onFailure, containers: "live:a", observed: "s0:ready a@s0:exited=137",
			in:   podstatus.Inputs{Unhealthy: func(string) bool { return true }},
			want: "Running +sandbox +initialized a=Error(137)"},
		{name: "Never goes on when a container is replaced", policy: never, containers: "a", observed: "s0:ready a@s0:exited=0",
			in:   podstatus.Inputs{Replaced: func(id string) bool { return id == "a-1" }},
			want: "Running +sandbox +initialized a=waiting(ContainerCreating),last=Completed(0)"},
		{name: "a container that is replaced and whose image cannot be pulled", policy: never, containers: "a", observed: "s0:ready a@s0:exited=0",
			in: podstatus.Inputs{
				Replaced: func(string) bool { return true }, Reasons: map[string]podstatus.Reason{"a": {Reason: "ErrImagePull"}},
			},
			want: "Running +sandbox +initialized a=waiting(ErrImagePull),last=Completed(0)"},
		{name: "the pod ends while a container is replaced", policy: never, containers: "a", observed: "s0:notready a@s0:exited=0",
			in:   podstatus.Inputs{Replaced: func(string) bool { return true }, Terminal: true},
			want: "Succeeded +initialized a=Completed(0)"},
		{name: "OnFailure waits after a kill for a probe", policy: onFailure, containers: "live:a", observed: "s0:ready a@s0:exited=0,rc=1",
			in:   podstatus.Inputs{Unhealthy: func(id string) bool { return id == "a-1" }, Reasons: backoff},
			want: "Running +sandbox +initialized a=waiting(CrashLoopBackOff),rc=1,last=Completed(0)"},
		{name: "Never ends after a kill for a probe", policy: never, containers: "live:a", observed: "s0:ready a@s0:exited=0",
			in:   podstatus.Inputs{Unhealthy: func(string) bool { return true }},
			want: "Succeeded +sandbox +initialized a=Completed(0)"},
		{name: "an end after a kill for a probe that is not restarted", policy: onFailure, containers: "live:a", observed: "s0:notready a@s0:exited=0",
			in:   podstatus.Inputs{Unhealthy: func(string) bool { return true }, Terminal: true},
			want: "Succeeded +initialized a=Completed(0)"},
		{name: "killed by its worker", policy: always, containers: "a", observed: "s0:notready a@s0:exited=137", in: podstatus.Inputs{Terminal: true},
			want: "Failed +initialized a=Error(137)"},
		{name: "ended by its worker", policy: always, containers: "a", observed: "s0:notready a@s0:exited=0", in: podstatus.Inputs{Terminal: true},
			want: "Succeeded +initialized a=Completed(0)"},
		{name: "ended before anything of it was made", policy: always, containers: "a", in: podstatus.Inputs{Terminal: true},
			want: "Failed +initialized a=ContainerStatusUnknown(137)"},
		{name: "ended with a container that was never started", policy: onFailure, containers: "a b", observed: "s0:notready a@s0:exited=0 b@s0:created",
			in:   podstatus.Inputs{Terminal: true},
			want: "Failed +initialized a=Completed(0) b=ContainerStatusUnknown(137)"},
		{name: "ended with a container whose image cannot be pulled", policy: never, containers: "a", observed: "s0:notready",
			in:   podstatus.Inputs{Terminal: true, Reasons: map[string]podstatus.Reason{"a": {Reason: "ImagePullBackOff"}}},
			want: "Failed +initialized a=ContainerStatusUnknown(137)"},
		{name: "ended before the first init container", policy: always, containers: "init:i init:j a", in: podstatus.Inputs{Terminal: true},
			want: "Failed i=ContainerStatusUnknown(137) j=waiting(PodInitializing) a=waiting(PodInitializing)"},
		{name: "ended between init containers", policy: always, containers: "init:i init:j init:k a", observed: "s0:notready i@s0:exited=0 j@s0:exited=143",
			in:   podstatus.Inputs{Terminal: true},
			want: "Failed i=Completed(0),ready j=Error(143) k=waiting(PodInitializing) a=waiting(PodInitializing)"},
		{name: "ended after the init containers", policy: always, containers: "init:i a", observed: "s0:notready i@s0:exited=0", in: podstatus.Inputs{Terminal: true},
			want: "Failed +initialized i=Completed(0),ready a=ContainerStatusUnknown(137)"},
		{name: "ended after its sidecar had started", policy: always, containers: "sidecar:s a", observed: "s0:notready s@s0:exited=143",
			in: podstatus.Inputs{Terminal: true, Previous: v1.PodStatus{
				Phase: v1.PodPending,
				InitContainerStatuses: []v1.ContainerStatus{
					{Name: "s", Started: new(true), State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}},
				},
			}},
			want: "Failed +initialized s=Error(143) a=ContainerStatusUnknown(137)"},
		{name: "ended when the record of a running one was gone", policy: always, containers: "a",
			in: podstatus.Inputs{Terminal: true, Previous: v1.PodStatus{
				Phase: v1.PodRunning,
				ContainerStatuses: []v1.ContainerStatus{
					{Name: "a", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}},
				},
			}},
			want: "Failed +initialized a=ContainerStatusUnknown(137),rc=1,last=ContainerStatusUnknown(137)"},
		{name: "Failed stays Failed", policy: always, containers: "a", observed: "s0:ready a@s0:running",
			in:   podstatus.Inputs{Previous: v1.PodStatus{Phase: v1.PodFailed}},
			want: "Failed +sandbox +initialized a=running,ready"},
		{name: "Succeeded stays Succeeded", policy: always, containers: "a",
			in:   podstatus.Inputs{Previous: v1.PodStatus{Phase: v1.PodSucceeded}},
			want: "Succeeded +initialized a=waiting(ContainerCreating)"},
		{name: "records were cleaned up", policy: never, containers: "a",
			in: podstatus.Inputs{Previous: v1.PodStatus{Phase: v1.PodSucceeded, ContainerStatuses: []v1.ContainerStatus{
				{Name: "a", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: "Completed"}}}}}},
			want: "Succeeded +initialized a=Completed(0)"},
		{name: "record of a running one is gone", policy: always, containers: "a", observed: "s0:ready",
			in: podstatus.Inputs{Previous: v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{
				{Name: "a", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}}},
			want: "Running +sandbox +initialized a=waiting(ContainerCreating),rc=1,last=ContainerStatusUnknown(137)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := podviewtest.Pod(test.policy, test.containers)
			test.in.Now = now
			got := podstatus.Generate(pod, podviewtest.Status(pod, test.observed), test.in)
			if format(got) != test.want {
				t.Errorf("\npod      %s %s\nobserved %s\ngot      %s\nwant     %s", test.policy, test.containers, test.observed, format(got), test.want)
			}
		})
	}
}

func TestLastWordsShareTheRoomOfThePod(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyNever, "init:i a b c d ephemeral:e")
	status := podviewtest.Status(pod, "s0:notready a@s0:exited=1 b@s0:exited=1")
	status.Containers[0].Message = "it could not be run"
	messages := map[string]string{status.Containers[0].Id: "bye", status.Containers[1].Id: strings.Repeat("é", 2000)}
	got := podstatus.Generate(pod, status, podstatus.Inputs{Now: now, Messages: messages}).ContainerStatuses
	if a := got[0].State.Terminated.Message; a != strings.Repeat("é", 1024) { // one sixth of 12 KiB
		t.Errorf("message of %d bytes, want 1024 times é", len(a))
	}
	if b := got[1].State.Terminated.Message; b != "it could not be run: bye" {
		t.Errorf("b = %q, want %q", b, "it could not be run: bye")
	}
}

func TestEphemeralContainersAreShownAndChangeNothingElse(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a ephemeral:e ephemeral:f")
	got := podstatus.Generate(pod, podviewtest.Status(pod, "s0:ready a@s0:running e@s0:exited=3"), podstatus.Inputs{Now: now})
	if want := "Running +sandbox +initialized +ready +containers a=running,ready"; format(got) != want {
		t.Errorf("got %s, want %s", format(got), want)
	}
	shown := got.EphemeralContainerStatuses
	if len(shown) != 2 || shown[0].State.Terminated == nil || shown[0].State.Terminated.ExitCode != 3 || shown[0].Ready ||
		shown[1].State.Waiting == nil || shown[1].State.Waiting.Reason != "ContainerCreating" {
		t.Errorf("ephemeral containers %+v", shown)
	}
}

func TestConditionsSayWhyTheyDoNotHold(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "init:i a")
	pod.Generation = 3
	got := podstatus.Generate(pod, nil, podstatus.Inputs{Now: now})
	at := metav1.NewTime(now)
	want := []v1.PodCondition{
		{Type: v1.PodReadyToStartContainers, Status: v1.ConditionFalse, Reason: "PodSandboxNotReady",
			Message: "no pod sandbox exists", ObservedGeneration: 3, LastTransitionTime: at},
		{Type: v1.PodInitialized, Status: v1.ConditionFalse, Reason: "ContainersNotInitialized",
			Message: "containers with incomplete status: [i]", ObservedGeneration: 3, LastTransitionTime: at},
		{Type: v1.PodReady, Status: v1.ConditionFalse, Reason: "ContainersNotReady",
			Message: "containers with unready status: [a]", ObservedGeneration: 3, LastTransitionTime: at},
		{Type: v1.ContainersReady, Status: v1.ConditionFalse, Reason: "ContainersNotReady",
			Message: "containers with unready status: [a]", ObservedGeneration: 3, LastTransitionTime: at},
		{Type: v1.PodScheduled, Status: v1.ConditionTrue, ObservedGeneration: 3, LastTransitionTime: at},
	}
	if diff := cmp.Diff(want, got.Conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if got.ObservedGeneration != 3 || got.QOSClass != v1.PodQOSBestEffort {
		t.Errorf("observedGeneration %d, QoS %s, want 3 and %s", got.ObservedGeneration, got.QOSClass, v1.PodQOSBestEffort)
	}
}

func TestReadinessGates(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	pod.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "lb"}}
	status := podviewtest.Status(pod, "s0:ready a@s0:running")
	ready := func() v1.PodCondition {
		for _, c := range podstatus.Generate(pod, status, podstatus.Inputs{Now: now}).Conditions {
			if c.Type == v1.PodReady {
				return c
			}
		}
		return v1.PodCondition{}
	}
	if c := ready(); c.Status != v1.ConditionFalse || !strings.Contains(c.Message, `"lb" does not exist`) {
		t.Errorf("without the gate's condition: %+v", c)
	}
	pod.Status.Conditions = []v1.PodCondition{{Type: "lb", Status: v1.ConditionTrue}}
	if c := ready(); c.Status != v1.ConditionTrue {
		t.Errorf("with the gate's condition: %+v, want Status %v", c, v1.ConditionTrue)
	}
}

// TestTheLastStatusStays checks that the status of an ended pod does not change any more, also after a restart.
func TestTheLastStatusStays(t *testing.T) {
	for _, words := range [][2]string{{"a", ""}, {"init:i a", ""}, {"init:i a", "s0:notready i@s0:exited=0"}, {"a b", "s0:notready a@s0:exited=0"}, {"sidecar:s a", "s0:notready s@s0:exited=1"}} {
		pod := podviewtest.Pod(v1.RestartPolicyAlways, words[0])
		observed := podviewtest.Status(pod, words[1])
		last := podstatus.Generate(pod, observed, podstatus.Inputs{Now: now, Terminal: true})
		again := podstatus.Generate(pod, observed, podstatus.Inputs{
			Now: now.Add(time.Minute), Terminal: true, Previous: last,
		})
		if diff := cmp.Diff(last, again); diff != "" {
			t.Errorf("%s: the same process has another one (-first +second):\n%s", words, diff)
		}
		pod.Status = last
		again = podstatus.Generate(pod, observed, podstatus.Inputs{Now: now.Add(time.Minute), Previous: last})
		if diff := cmp.Diff(last, again); diff != "" {
			t.Errorf("%s: the next process has another one before it has ended the pod again (-first +second):\n%s", words, diff)
		}
	}
}

// TestAStaticPodHasNoLastPhase checks that a static pod is not final, because it may come back under its UID. Its
// containers have ended all the same.
func TestAStaticPodHasNoLastPhase(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	pod.Annotations = map[string]string{podset.AnnotationSource: "file"}
	got := podstatus.Generate(pod, podviewtest.Status(pod, ""), podstatus.Inputs{Now: now, Terminal: true})
	if want := "Pending +initialized a=ContainerStatusUnknown(137)"; format(got) != want {
		t.Errorf("got %s, want %s", format(got), want)
	}
}

func TestProbesGateReadyOnlyWhereThereIsAProber(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{}
	pod.Spec.Containers[0].StartupProbe = &v1.Probe{}
	status := podviewtest.Status(pod, "s0:ready a@s0:running")
	no := func(string) bool { return false }
	yes := func(string) bool { return true }
	for _, test := range []struct {
		started, ready         func(string) bool
		wantStarted, wantReady bool
	}{{nil, nil, true, true}, {no, yes, false, false}, {yes, no, true, false}, {yes, yes, true, true}} {
		got := podstatus.Generate(pod, status, podstatus.Inputs{
			Now: now, Started: test.started, Readiness: test.ready,
		}).ContainerStatuses[0]
		if *got.Started != test.wantStarted || got.Ready != test.wantReady {
			t.Errorf("started %v, ready %v; want %v, %v", *got.Started, got.Ready, test.wantStarted, test.wantReady)
		}
	}
}

func TestAddresses(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	status := podviewtest.Status(pod, "s0:ready")
	status.Ips = []string{"fd00::5", "10.88.0.5"}
	got := podstatus.Generate(pod, status, podstatus.Inputs{Now: now, HostIPs: []string{"192.0.2.1"}})
	if got.PodIP != "10.88.0.5" || len(got.PodIPs) != 2 || got.HostIP != "192.0.2.1" {
		t.Errorf("podIP %s %v, hostIP %s; want the node's family first", got.PodIP, got.PodIPs, got.HostIP)
	}
	pod.Spec.HostNetwork = true
	got = podstatus.Generate(pod, podviewtest.Status(pod, "s0:ready-host"), podstatus.Inputs{Now: now, HostIPs: []string{"192.0.2.1"}})
	if got.PodIP != "192.0.2.1" {
		t.Errorf("podIP on the host's network = %q, want %q", got.PodIP, "192.0.2.1")
	}
}

func TestTerminationMessageAndID(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyNever, "a")
	status := podviewtest.Status(pod, "s0:ready a@s0:exited=1")
	got := podstatus.Generate(pod, status, podstatus.Inputs{
		Now: now, Messages: map[string]string{"a-1": "out of cheese"},
	}).ContainerStatuses[0]
	if got.ContainerID != "containerd://a-1" || got.State.Terminated.Message != "out of cheese" {
		t.Errorf("id %q, message %q, want %q and %q",
			got.ContainerID, got.State.Terminated.Message, "containerd://a-1", "out of cheese")
	}
}

// TestAContainerThatCouldNotBeStartedHasTheStartOfAKubelet checks that the start time is the runtime's 0, as with a
// kubelet.
func TestAContainerThatCouldNotBeStartedHasTheStartOfAKubelet(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyNever, "a")
	status := podviewtest.Status(pod, "s0:ready a@s0:exited=128")
	status.Containers[0].StartedAt = nil
	got, start := podstatus.Generate(pod, status, podstatus.Inputs{
		Now: now,
	}).ContainerStatuses[0].State.Terminated, metav1.Unix(0, 0)
	if got == nil || !got.StartedAt.Equal(&start) || got.FinishedAt.IsZero() {
		t.Errorf("got %v, want a start at %v and an end", got, &start)
	}
}

// TestARestartOfTheAgentChangesNothing computes the status of the same observed state with and without the previous
// status. Only one time may differ.
func TestARestartOfTheAgentChangesNothing(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "init:i a")
	status := podviewtest.Status(pod, "s0:ready i@s0:exited=0 a@s0:running,ran=50m")
	before := podstatus.Generate(pod, status, podstatus.Inputs{Now: now})
	kept := podstatus.Generate(pod, status, podstatus.Inputs{Now: now.Add(time.Hour), Previous: before})
	restarted := podstatus.Generate(pod, status, podstatus.Inputs{Now: now.Add(time.Hour)})
	if diff := cmp.Diff(before, kept); diff != "" {
		t.Errorf("a later look (-before +kept):\n%s", diff)
	}
	if diff := cmp.Diff(before, restarted); diff != "" {
		t.Errorf("a look after a restart (-before +restarted):\n%s", diff)
	}
}

// TestAPodThatCannotBeInspectedKeepsItsStatusAndSaysSo checks that such a pod has a condition with the time and the
// cause, and that nothing else in its status changes.
func TestAPodThatCannotBeInspectedKeepsItsStatusAndSaysSo(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	seen := podviewtest.Status(pod, "s0:ready a@s0:running")
	before := podstatus.Generate(pod, seen, podstatus.Inputs{Now: now})
	since := now.Add(-time.Minute)
	seen.InspectError, seen.UnknownSince = "no answer", timestamppb.New(since)
	during := podstatus.Generate(pod, seen, podstatus.Inputs{Now: now, Previous: before})
	last := during.Conditions[len(during.Conditions)-1]
	if last.Type != podset.ConditionRuntimeStateUnknown || last.Status != v1.ConditionTrue ||
		last.Message != "no answer" || !last.LastTransitionTime.Time.Equal(since) {
		t.Errorf("the last condition is %+v", last)
	}
	restarted := podviewtest.Status(pod, "s0:ready a@s0:running")
	restarted.InspectError, restarted.UnknownSince = "not inspected yet", timestamppb.New(now)
	again := podstatus.Generate(pod, restarted, podstatus.Inputs{Now: now, Previous: during})
	if last := again.Conditions[len(again.Conditions)-1]; last.Message != "not inspected yet" || !last.LastTransitionTime.Time.Equal(since) {
		t.Errorf("after a restart of pleg the last condition is %+v", last)
	}
	pod.Status = during // as the API server returns it
	during.Conditions = during.Conditions[:len(during.Conditions)-1]
	if diff := cmp.Diff(before, during); diff != "" {
		t.Errorf("besides (-before +during):\n%s", diff)
	}
	seen.InspectError, seen.UnknownSince = "", nil
	after := podstatus.Generate(pod, seen, podstatus.Inputs{Now: now, Previous: pod.Status})
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("when it is over (-before +after):\n%s", diff)
	}
}

func TestTransitionTimeMovesWithTheStatusOnly(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	up := podstatus.Generate(pod, podviewtest.Status(pod, "s0:ready a@s0:running"), podstatus.Inputs{Now: now})
	later := now.Add(time.Minute)
	down := podstatus.Generate(pod, podviewtest.Status(pod, "s0:ready a@s0:exited=1"), podstatus.Inputs{Now: later, Previous: up})
	for _, c := range down.Conditions {
		want := later
		if c.Status == v1.ConditionTrue {
			for _, before := range up.Conditions {
				if before.Type == c.Type {
					want = before.LastTransitionTime.Time
				}
			}
		}
		if !c.LastTransitionTime.Time.Equal(want) {
			t.Errorf("%s=%s since %s, want %s", c.Type, c.Status, c.LastTransitionTime, want)
		}
	}
}

func TestPhaseNeverLeavesAnEnd(t *testing.T) {
	states := []string{"", "s0:ready", "s0:ready a@s0:running", "s0:ready a@s0:exited=0", "s0:ready a@s0:exited=1", "s0:notready a@s0:unknown"}
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]v1.RestartPolicy{
			v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever,
		}).Draw(t, "policy")
		pod := podviewtest.Pod(policy, "a")
		var previous v1.PodStatus
		for range 6 {
			observed := rapid.SampledFrom(states).Draw(t, "observed")
			next := podstatus.Generate(pod, podviewtest.Status(pod, observed), podstatus.Inputs{
				Now: now, Previous: previous, Terminal: rapid.Bool().Draw(t, "terminal"),
			})
			if (previous.Phase == v1.PodFailed || previous.Phase == v1.PodSucceeded) && next.Phase != previous.Phase {
				t.Fatalf("phase %s became %s, want an end to stay", previous.Phase, next.Phase)
			}
			previous = next
		}
	})
}

// TestTheUserOfAContainer checks that the status has the user that the runtime reports, and none for a container that
// was not created.
func TestTheUserOfAContainer(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a b c")
	status := podviewtest.Status(pod, "s0:ready a@s0:running b@s0:running")
	for _, c := range status.GetContainers() {
		if c.GetName() == "a" {
			c.User = &lifecyclev1.LinuxUser{Uid: 1000, Gid: 3000, SupplementalGroups: []int64{3000, 4000}}
		}
	}
	want := []*v1.ContainerUser{
		{Linux: &v1.LinuxContainerUser{UID: 1000, GID: 3000, SupplementalGroups: []int64{3000, 4000}}}, nil, nil,
	}
	var got []*v1.ContainerUser
	for _, c := range podstatus.Generate(pod, status, podstatus.Inputs{Now: now}).ContainerStatuses {
		got = append(got, c.User)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
}
