package executor_test

import (
	"context"
	"testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestAProcessKilledHalfwayLeavesNothingBehind kills the agent in the middle of a start. Another agent continues from
// what is left in the runtime.
func TestAProcessKilledHalfwayLeavesNothingBehind(t *testing.T) {
	for method, want := range map[string]string{
		// Between RunPodSandbox and CreateContainer.
		"CreateContainer": "sandbox-0:ready a-0:running b-0:running",
		// Between CreateContainer and StartContainer: the next container counts as a restart, as with the kubelet.
		"StartContainer": "sandbox-0:ready a-1:running b-1:running",
	} {
		t.Run(method, func(t *testing.T) {
			n := newNode(t)
			pod := newPod("a", "b")
			gate := n.cri.Hang(method, "")
			process, kill := context.WithCancel(n.ctx)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if _, err := n.manager.SyncPod(process, pod, n.observe(pod)); err == nil {
					t.Error("the first agent was not interrupted")
				}
			}()
			// No call is on its way any more: it would interfere with those of the next process. Containers are created at
			// once, and started one after the other.
			eventually.That(t, method+" is called", func() bool {
				if method == "StartContainer" {
					return gate.Waiting() == 1 && len(n.observe(pod).Containers) == 2
				}
				return gate.Waiting() == 2
			})
			kill()
			<-done
			// The runtime has noticed, too, that its caller is gone.
			eventually.That(t, "no call waits", func() bool { return gate.Waiting() == 0 })
			gate.Open()

			n.manager = executor.New(n.config)
			n.sync(pod)
			status := n.observe(pod)
			running := 0
			for _, c := range status.Containers {
				if podview.Running(c) {
					running++
				}
			}
			if running != 2 || len(status.Containers) != 2 || len(status.Sandboxes) != 1 {
				t.Errorf("the runtime has %s, want something like %s", n.describe(pod), want)
			}
			if result := n.sync(pod); result.Wrote {
				t.Error("something is left to do")
			}
		})
	}
}

func TestTheBeginningOfAPodOutlivesItsFirstSandbox(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	// only the agent may set it
	pod.Annotations = map[string]string{"quartet.dev/pod-started": "2001-01-01T00:00:00Z"}
	n.sync(pod)
	began := podview.Started(n.observe(pod))
	for range 2 {
		if err := n.runtime.StopPodSandbox(n.ctx, podview.Sandbox(n.observe(pod)).GetId()); err != nil {
			t.Fatal(err)
		}
		n.sync(pod)
		old := n.observe(pod).Sandboxes[1].GetId()
		if err := n.runtime.RemovePodSandbox(n.ctx, old); err != nil {
			t.Fatal(err)
		}
		status := n.observe(pod)
		if got := podview.Started(status); len(status.Sandboxes) != 1 || !got.Equal(began) {
			t.Errorf("%d sandboxes; the pod began at %v, then at %v", len(status.Sandboxes), began, got)
		}
	}
}
