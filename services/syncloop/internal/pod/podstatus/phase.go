package podstatus

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
)

// tally counts containers by their effect on the phase.
type tally struct {
	pendingInit    int // init containers that have not completed yet
	pendingSidecar int // sidecars that have not started yet
	failedInit     int // failed init containers that are not restarted
	waiting        int // containers that have never run
	running        int
	stopped        int // ordinary containers that have ended
	final          int // of these, those that are not restarted
	succeeded      int // of these, those with exit code 0
}

// phase computes the phase. Succeeded and Failed are final.
func (g *generation) phase(out v1.PodStatus) v1.PodPhase {
	for _, before := range []v1.PodPhase{g.pod.Status.Phase, g.in.Previous.Phase} {
		if before == v1.PodSucceeded || before == v1.PodFailed {
			return before
		}
	}
	t := g.tally(out)
	switch {
	case t.failedInit > 0:
		return v1.PodFailed
	case t.pendingInit > 0, t.waiting > 0, t.pendingSidecar > 0 && !decide.Initialized(g.pod, g.status):
		return v1.PodPending
	case t.running > 0:
		return v1.PodRunning
	case t.stopped == 0:
		return v1.PodPending
	}
	// A static pod whose worker has finished is gone, or comes back under the same UID, so it has no final phase.
	if t.final < t.stopped && (!g.in.Terminal || podset.IsStatic(g.pod)) {
		return v1.PodRunning // some are about to be restarted
	}
	if t.succeeded == t.stopped {
		return v1.PodSucceeded
	}
	return v1.PodFailed
}

func (g *generation) tally(out v1.PodStatus) tally {
	var t tally
	for i := range g.pod.Spec.InitContainers {
		c, status := &g.pod.Spec.InitContainers[i], out.InitContainerStatuses[i]
		if podset.IsSidecar(c) {
			t.addSidecar(status)
		} else {
			t.addInit(c, status, g.comesBack)
		}
	}
	for i := range g.pod.Spec.Containers {
		c := &g.pod.Spec.Containers[i]
		for _, status := range out.ContainerStatuses {
			if status.Name == c.Name {
				t.addOrdinary(c, status, g.comesBack)
			}
		}
	}
	return t
}

// restarting reports whether an ended container should run again.
type restarting func(c *v1.Container, end *v1.ContainerStateTerminated) bool

// restarts reports whether an ended container should run again, by the rules of package decide.
func (g *generation) restarts(c *v1.Container, end *v1.ContainerStateTerminated) bool {
	ending := decide.Ending{Code: end.ExitCode}
	_, id, _ := strings.Cut(end.ContainerID, "://")
	if g.in.Unhealthy != nil && (c.LivenessProbe != nil || c.StartupProbe != nil) {
		ending.Unhealthy = id != "" && g.in.Unhealthy(id)
	}
	ending.Replaced = id != "" && g.in.Replaced != nil && g.in.Replaced(id)
	return decide.Restarts(g.pod, c, ending)
}

// lastEnd returns the last end of a container that does not run; nil if it has never ended.
func lastEnd(status v1.ContainerStatus) *v1.ContainerStateTerminated {
	if status.State.Terminated != nil {
		return status.State.Terminated
	}
	return status.LastTerminationState.Terminated
}

func (t *tally) addInit(c *v1.Container, status v1.ContainerStatus, restarts restarting) {
	end := lastEnd(status)
	if status.State.Running != nil || end == nil {
		t.pendingInit++
		return
	}
	if end.ExitCode != 0 && !restarts(c, end) {
		t.failedInit++
	}
}

func (t *tally) addSidecar(status v1.ContainerStatus) {
	switch {
	case status.State.Running != nil:
		if status.Started == nil || !*status.Started {
			t.pendingSidecar++
		}
		t.running++
	case lastEnd(status) == nil:
		t.pendingSidecar++
		t.waiting++
	}
}

func (t *tally) addOrdinary(c *v1.Container, status v1.ContainerStatus, restarts restarting) {
	end := lastEnd(status)
	switch {
	case status.State.Running != nil:
		t.running++
		return
	case end == nil:
		t.waiting++
		return
	}
	t.stopped++
	if !restarts(c, end) {
		t.final++
	}
	if status.State.Terminated != nil && end.ExitCode == 0 {
		t.succeeded++
	}
}
