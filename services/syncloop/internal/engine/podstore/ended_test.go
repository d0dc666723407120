package podstore_test

import (
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// TestTheContainersOfAnEndedPodHaveEnded: controllers wait for terminated container statuses. A pod that was never
// admitted has no container statuses before it is deleted.
func TestTheContainersOfAnEndedPodHaveEnded(t *testing.T) {
	ended := "ContainerStatusUnknown 137"
	for name, test := range map[string]struct {
		eviction *podstore.Eviction
		worked   bool
		want     string
	}{
		"deleted":               {nil, true, ended},
		"evicted":               {&podstore.Eviction{Reason: "Evicted", Message: "memory", Disruption: "d"}, true, ended},
		"overdue":               {&podstore.Eviction{Reason: "DeadlineExceeded", Message: "m"}, true, ended},
		"refused":               {&podstore.Eviction{Reason: "OutOfcpu", Message: "m"}, false, ""},
		"refused, then deleted": {&podstore.Eviction{Reason: "OutOfcpu", Message: "m"}, true, ended},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, nil)
			s.Open()
			s.SetWaiting("")
			s.SetPod(fakenode.Pod("u1", "web", v1.RestartPolicyNever), "api", "")
			if test.eviction != nil {
				if err := s.Evict("u1", *test.eviction); err != nil {
					t.Fatal(err)
				}
			}
			if test.worked {
				s.SetState("u1", podworkers.Terminating)
				s.SetState("u1", podworkers.Terminated)
			}
			pods, err := s.Pods()
			if err != nil || len(pods) != 1 {
				t.Fatalf("%d pods, %v, want len(pods) 1", len(pods), err)
			}
			status, got := pods[0].Status, ""
			for _, c := range status.ContainerStatuses {
				if end := c.State.Terminated; end != nil {
					got = fmt.Sprintf("%s %d", end.Reason, end.ExitCode)
				}
			}
			if status.Phase != v1.PodFailed || got != test.want {
				t.Errorf("phase %s, container %q, want Failed and %q", status.Phase, got, test.want)
			}
			if test.eviction != nil && status.Reason != test.eviction.Reason {
				t.Errorf("reason %q, want %q", status.Reason, test.eviction.Reason)
			}
		})
	}
}

// TestAnEarlierEndIsReportedUnchanged checks that after a restart the containers of an ended pod do not show as
// waiting. The pod keeps its status until it has a worker.
func TestAnEarlierEndIsReportedUnchanged(t *testing.T) {
	s := newStore(t, nil)
	s.Open()
	s.SetWaiting("")
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyNever)
	pod.Status = v1.PodStatus{Phase: v1.PodFailed, Reason: "OutOfcpu", Message: "Pod was rejected: m"}
	s.SetPod(pod, "api", "")
	containers := func() []v1.ContainerStatus {
		t.Helper()
		pods, err := s.Pods()
		if err != nil || len(pods) != 1 || pods[0].Status.Phase != v1.PodFailed || pods[0].Status.Reason != "OutOfcpu" {
			t.Fatalf("Pods() = %+v, %v, want exactly one, pods[0].Status.Phase %v and pods[0].Status.Reason %q",
				pods, err, v1.PodFailed, "OutOfcpu")
		}
		return pods[0].Status.ContainerStatuses
	}
	if got := containers(); len(got) > 0 {
		t.Errorf("a pod that was refused has %+v, want none", got)
	}
	s.SetState("u1", podworkers.Terminated)
	if got := containers(); len(got) != 1 || got[0].State.Terminated == nil {
		t.Errorf("a pod that was ended has %+v", got)
	}
}

func TestEvictedPodIsFailedWhateverItsContainersDo(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	node.Run(pod)
	s := newStore(t, nil)
	s.Open()
	s.SetPod(pod, "file", "")
	s.Observe("u1", running(t, node, "u1"))
	if err := s.Evict("u1", podstore.Eviction{Reason: "Evicted", Message: "memory"}); err != nil {
		t.Fatal(err)
	}
	node.Exit("u1", 0)
	s.Observe("u1", running(t, node, "u1"))
	if got := s.Phase("u1"); got != v1.PodFailed {
		t.Errorf("phase %q, want %q", got, v1.PodFailed)
	}
	if err := s.Evict("u9", podstore.Eviction{}); !errors.Is(err, podstore.ErrNotFound) {
		t.Errorf("Evict(u9) error = %v, want %v", err, podstore.ErrNotFound)
	}
}
