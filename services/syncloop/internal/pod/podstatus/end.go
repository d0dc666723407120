package podstatus

import (
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
)

// end makes the status of a pod of which nothing runs any more, and nothing will, the last one. A container of which no end is
// known counts as failed: nobody can say that it has succeeded. The containers that the pod had not come to because its init
// containers had not ended go on waiting. A pod that had not ended by itself is Failed, unless it is static: a static pod
// may come back under its UID.
func (g *generation) end(out *v1.PodStatus) {
	if g.begun(out) {
		endAll(out.ContainerStatuses)
	}
	endAll(attempted(out.InitContainerStatuses))
	if out.Phase != v1.PodSucceeded && out.Phase != v1.PodFailed && !podset.IsStatic(g.pod) {
		out.Phase = v1.PodFailed
	}
}

// begun tells whether a pod had come to its ordinary containers, by the status that was told last or by the one that is computed.
func (g *generation) begun(out *v1.PodStatus) bool {
	inits := g.pod.Spec.InitContainers
	if len(inits) == 0 || decide.Initialized(g.pod, g.status) {
		return true
	}
	for _, known := range []*v1.PodStatus{&g.in.Previous, &g.pod.Status, out} {
		for i := range known.ContainerStatuses {
			if s := &known.ContainerStatuses[i]; s.State.Waiting == nil || s.LastTerminationState.Terminated != nil {
				return true
			}
		}
		for i := range known.InitContainerStatuses {
			if s := &known.InitContainerStatuses[i]; s.Name == inits[len(inits)-1].Name && initDone(&inits[len(inits)-1], s) {
				return true
			}
		}
	}
	return false
}

// initDone tells whether an init container lets the next containers start.
func initDone(c *v1.Container, s *v1.ContainerStatus) bool {
	if podset.IsSidecar(c) {
		return s.State.Running != nil && s.Started != nil && *s.Started
	}
	end := lastEnd(*s)
	return end != nil && end.ExitCode == 0
}

// attempted are the init containers that were tried to be started, with all before them; the first one always counts.
func attempted(inits []v1.ContainerStatus) []v1.ContainerStatus {
	for i := len(inits) - 1; i > 0; i-- {
		if inits[i].State.Waiting == nil || inits[i].LastTerminationState.Terminated != nil {
			return inits[:i+1]
		}
	}
	return inits[:min(1, len(inits))]
}

// endAll ends the containers of which no end is known.
func endAll(statuses []v1.ContainerStatus) {
	for i := range statuses {
		if statuses[i].State.Terminated != nil {
			continue
		}
		statuses[i].State = v1.ContainerState{Terminated: unknownEnd("")}
		statuses[i].Ready, statuses[i].Started = false, new(bool)
	}
}

// unknownEnd is the end of a container that nobody has seen.
func unknownEnd(id string) *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{
		Reason: reasonStatusUnknown, ExitCode: codeUnknown, ContainerID: id,
		Message: "The container could not be located when the pod was terminated",
	}
}
