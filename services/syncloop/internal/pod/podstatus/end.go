package podstatus

import (
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
)

// end makes the status final, for a pod of which nothing runs any more. A container without a known end counts as
// failed. Containers that were not reached because the init containers had not completed stay waiting. A pod that had
// not completed is Failed, unless it is static, because a static pod may come back under its UID.
func (g *generation) end(out *v1.PodStatus) {
	if g.begun(out) {
		endAll(out.ContainerStatuses)
	}
	endAll(attempted(out.InitContainerStatuses))
	if out.Phase != v1.PodSucceeded && out.Phase != v1.PodFailed && !podset.IsStatic(g.pod) {
		out.Phase = v1.PodFailed
	}
}

// begun reports whether a pod had reached its ordinary containers, according to the last reported status or the
// computed one.
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

// initDone reports whether an init container permits the next containers to start.
func initDone(c *v1.Container, s *v1.ContainerStatus) bool {
	if podset.IsSidecar(c) {
		return s.State.Running != nil && s.Started != nil && *s.Started
	}
	end := lastEnd(*s)
	return end != nil && end.ExitCode == 0
}

// attempted returns the init containers that were started or attempted; the first one always counts.
func attempted(inits []v1.ContainerStatus) []v1.ContainerStatus {
	for i := len(inits) - 1; i > 0; i-- {
		if inits[i].State.Waiting == nil || inits[i].LastTerminationState.Terminated != nil {
			return inits[:i+1]
		}
	}
	return inits[:min(1, len(inits))]
}

// endAll ends the containers without a known end.
func endAll(statuses []v1.ContainerStatus) {
	for i := range statuses {
		if statuses[i].State.Terminated != nil {
			continue
		}
		statuses[i].State = v1.ContainerState{Terminated: unknownEnd("")}
		statuses[i].Ready, statuses[i].Started = false, new(bool)
	}
}

// unknownEnd returns the end of a container that was not observed.
func unknownEnd(id string) *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{
		Reason: reasonStatusUnknown, ExitCode: codeUnknown, ContainerID: id,
		Message: "The container could not be located when the pod was terminated",
	}
}
