package podstatus

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
)

// reasonRestartingAll is the kubelet's reason of a container that was removed because all containers of its pod are
// restarted: of its state, and of its last state.
const reasonRestartingAll = "RestartingAllContainers"

const messageRestartingAll = "The container was removed because all containers of its pod are restarted"

// restartsAll reports whether all containers of the pod are restarted: one has ended in that way, or they were removed
// and the pod has not reached its ordinary containers since. The previous status says so when nothing else does,
// between the removal of the last container and the creation of the first.
func (g *generation) restartsAll() bool {
	if g.pod.DeletionTimestamp != nil || g.in.Terminal {
		return false
	}
	return decide.BeginsAgain(g.pod, g.status) || decide.GoesOnAgain(g.pod, g.status) ||
		slices.ContainsFunc(g.in.Previous.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.AllContainersRestarting && c.Status == v1.ConditionTrue
		})
}

// removed makes the status that of a container that was removed because all of its pod are restarted. Its end is not
// the pod's, regardless of the restart policy. old is its previous status.
func removed(status, old *v1.ContainerStatus) *v1.ContainerStatus {
	status.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{
		Reason: reasonRestartingAll, Message: messageRestartingAll,
	}}
	status.LastTerminationState = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		Reason: reasonRestartingAll, Message: messageRestartingAll, ExitCode: codeUnknown,
	}}
	status.RestartCount = old.RestartCount + 1
	return status
}

// comesBack reports whether an ended container should run again: on its own, or with all containers of its pod.
func (g *generation) comesBack(c *v1.Container, end *v1.ContainerStateTerminated) bool {
	return end.Reason == reasonRestartingAll || decide.BeginsAgain(g.pod, g.status) || g.restarts(c, end)
}
