package podstatus_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
)

// TestTheReasonOfAWaitIsGoneWhenThePodContinues checks that the message about a delay is removed, also if the API
// server still has it.
func TestTheReasonOfAWaitIsGoneWhenThePodContinues(t *testing.T) {
	held := podstatus.Inputs{Now: now, Reason: podstatus.ReasonVolumes, Message: "volume x"}
	for name, test := range map[string]struct {
		observed string
		in       podstatus.Inputs
		has      v1.PodStatus
		want     string
	}{
		"it waits":                          {"", held, v1.PodStatus{Phase: v1.PodPending}, "Pending FailedMount: volume x"},
		"it waits for its containers":       {"s0:ready", podstatus.Inputs{Now: now}, v1.PodStatus{Phase: v1.PodPending, Reason: podstatus.ReasonVolumes, Message: "volume x"}, "Pending"},
		"it runs":                           {"s0:ready a@s0:running", podstatus.Inputs{Now: now}, v1.PodStatus{Phase: v1.PodPending, Reason: podstatus.ReasonSandbox, Message: "m"}, "Running"},
		"it was ended while it waited":      {"", podstatus.Inputs{Now: now, Terminal: true, Reason: podstatus.ReasonVolumes, Message: "volume x"}, v1.PodStatus{Phase: v1.PodPending, Reason: podstatus.ReasonVolumes, Message: "volume x"}, "Failed"},
		"somebody else has said why":        {"s0:ready", podstatus.Inputs{Now: now}, v1.PodStatus{Phase: v1.PodPending, Reason: "Held", Message: "by a controller"}, "Pending Held: by a controller"},
		"why it has failed stays":           {"", podstatus.Inputs{Now: now, Terminal: true}, v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "memory"}, "Failed Evicted: memory"},
		"nothing holds up a pod that ended": {"", held, v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "memory"}, "Failed Evicted: memory"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
			pod.Status, test.in.Previous = test.has, test.has
			got := podstatus.Generate(pod, podviewtest.Status(pod, test.observed), test.in)
			phase := string(got.Phase)
			if got.Reason != "" || got.Message != "" {
				phase += " " + got.Reason + ": " + got.Message
			}
			if phase != test.want {
				t.Errorf("got %s, want %s", phase, test.want)
			}
		})
	}
}

func TestTheReasonOfAWaitIsShownAndThenGone(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	first := podstatus.Generate(pod, nil, podstatus.Inputs{Now: now, Reason: "VolumeNotSupported", Message: "volume x"})
	if first.Message != "volume x" || first.Phase != v1.PodPending {
		t.Fatalf("first.Phase = %s %q, want %q and %s", first.Phase, first.Message, "volume x", v1.PodPending)
	}
	if next := podstatus.Generate(pod, nil, podstatus.Inputs{Now: now, Previous: first}); next.Message != "" {
		t.Errorf("message stays: %q, want an empty text", next.Message)
	}
	failed := v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "m"}
	if next := podstatus.Generate(pod, nil, podstatus.Inputs{Now: now, Previous: failed}); next.Reason != "Evicted" {
		t.Errorf("reason of a failed pod is lost: %q", next.Reason)
	}
}

// TestTheReasonOfAWaitIsGoneWhenThePodRuns checks that the message is removed when the pod runs, although the sync that
// started it has not yet reported success.
func TestTheReasonOfAWaitIsGoneWhenThePodRuns(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	running := podviewtest.Status(pod, "s0:ready a@s0:running")
	first := podstatus.Generate(pod, running, podstatus.Inputs{
		Now: now, Reason: "FailedCreatePodSandBox", Message: "no network",
	})
	if first.Phase != v1.PodRunning || first.Reason != "FailedCreatePodSandBox" {
		t.Fatalf("phase %s, reason %s, want %s and %q", first.Phase, first.Reason, v1.PodRunning, "FailedCreatePodSandBox")
	}
	if next := podstatus.Generate(pod, running, podstatus.Inputs{Now: now, Previous: first}); next.Reason != "" ||
		next.Message != "" {
		t.Errorf("a running pod still says %s: %s", next.Reason, next.Message)
	}
}
