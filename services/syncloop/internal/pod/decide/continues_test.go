package decide_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
)

func TestANewLifeContinuesIfAllContainersRunAgain(t *testing.T) {
	const always, onFailure, never = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	for _, test := range []struct {
		name       string
		policy     v1.RestartPolicy
		containers string
		observed   string
		want       bool
	}{
		{"all have ended", always, "a b", "s0:notready a@s0:exited=0 b@s0:exited=137", true},
		{"one was never created", always, "a b", "s0:notready a@s0:exited=0", true},
		{"one was never started", always, "a", "s0:notready a@s0:created", true},
		{"nothing is left", always, "a", "", false},
		{"only the sandbox is left", always, "a", "s0:notready", false},
		{"a failure under OnFailure", onFailure, "a", "s0:notready a@s0:exited=143", true},
		{"a success under OnFailure", onFailure, "a b", "s0:notready a@s0:exited=0 b@s0:exited=143", false},
		{"Never", never, "a", "s0:notready a@s0:exited=143", false},
		{"Never, and its containers were never created", never, "init:i a", "s0:notready i@s0:exited=0", false},
		{"completed init", always, "init:i a", "s0:notready i@s0:exited=0 a@s0:exited=143", true},
		{"killed init", always, "init:i a", "s0:notready i@s0:exited=137", true},
		{"killed init under OnFailure", onFailure, "init:i a", "s0:notready i@s0:exited=137", true},
		{"sidecar", onFailure, "sidecar:s a", "s0:notready s@s0:exited=0 a@s0:exited=1", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := podviewtest.Pod(test.policy, test.containers)
			status := podviewtest.Status(pod, test.observed)
			if got := decide.Continues(pod, status); got != test.want {
				t.Errorf("Continues() = %v, want %v", got, test.want)
			}
			pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](60)
			if decide.Continues(pod, status) {
				t.Error("Continues() = true with a deadline, which would count from the earlier life")
			}
		})
	}
}

// TestAFailedInitContainerWithAnotherPolicyThanThePod: the pod would not get beyond it.
func TestAFailedInitContainerWithAnotherPolicyThanThePod(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyNever, "init:i a")
	pod.Spec.Containers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	if decide.Continues(pod, podviewtest.Status(pod, "s0:notready i@s0:exited=137")) {
		t.Error("Continues() = true, want false")
	}
}
