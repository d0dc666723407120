package e2e

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// job returns a pod with one ordinary container and two sidecars. It ends when the ordinary container does.
func job(name, sidecarArgs string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: e2e}
spec:
  restartPolicy: Never
  initContainers:
  - {name: before, image: %[2]q, args: [init]}
  - {name: outer, image: %[2]q, args: [sleep], restartPolicy: Always}
  - {name: inner, image: %[2]q, args: %[3]s, restartPolicy: Always}
  containers:
  - {name: work, image: %[2]q, args: [init, -after, 5s]}
`, name, image, sidecarArgs)
}

// states returns the states of all containers of a pod by name.
func states(p *v1.Pod) map[string]v1.ContainerState {
	all := map[string]v1.ContainerState{}
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range list {
			all[c.Name] = c.State
		}
	}
	return all
}

func TestSidecarsComeUpInOrderAndDoNotKeepAJobAlive(t *testing.T) {
	place(t, "job.yaml", job("job", "[sleep]"))
	began := map[string]time.Time{}
	await(t, "job", "running", func(p *v1.Pod) bool {
		if p == nil || states(p)["work"].Running == nil {
			return false
		}
		for name, state := range states(p) {
			if state.Running != nil {
				began[name] = state.Running.StartedAt.Time
			}
		}
		return len(began) == 3
	})
	if began["outer"].After(began["inner"]) || began["inner"].After(began["work"]) {
		t.Errorf("they started at %v, want outer, inner, work", began)
	}
	p := await(t, "job", "Succeeded", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodSucceeded })
	ended := map[string]*v1.ContainerStateTerminated{}
	for name, state := range states(p) {
		if ended[name] = state.Terminated; state.Terminated == nil || state.Terminated.ExitCode != 0 {
			t.Fatalf("container %s has not ended by itself:\n%s", name, describe(p))
		}
	}
	if ended["work"].FinishedAt.After(ended["inner"].FinishedAt.Time) || ended["inner"].FinishedAt.After(ended["outer"].FinishedAt.Time) {
		t.Errorf("they did not end in the order work, inner, outer:\n%s", describe(p))
	}
}

func TestASidecarIsRestartedInItsOwnRightAndDoesNotMakeAJobFail(t *testing.T) {
	place(t, "crashing.yaml", job("crashing", "[crash, -after, 500ms]"))
	await(t, "crashing", "running with a restarted sidecar", func(p *v1.Pod) bool {
		return p != nil && states(p)["work"].Running != nil && p.Status.InitContainerStatuses[2].RestartCount > 0
	})
	p := await(t, "crashing", "Succeeded", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodSucceeded })
	if c := p.Status.ContainerStatuses[0]; c.RestartCount != 0 || c.State.Terminated == nil {
		t.Errorf("the work was repeated:\n%s", describe(p))
	}
}
