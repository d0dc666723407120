package podstatus

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

const (
	reasonContainerCreating = "ContainerCreating"
	reasonPodInitializing   = "PodInitializing"
	reasonCompleted         = "Completed"
	reasonError             = "Error"
	reasonStatusUnknown     = "ContainerStatusUnknown"
	// codeUnknown is the exit code of a container whose end nobody has seen.
	codeUnknown = 137
)

// containerStatuses computes the statuses of the init or of the ordinary containers, in the order of the spec.
func (g *generation) containerStatuses(specs []v1.Container, previous []v1.ContainerStatus, init bool) []v1.ContainerStatus {
	if len(specs) == 0 {
		return nil
	}
	out := make([]v1.ContainerStatus, 0, len(specs))
	for i := range specs {
		c := &specs[i]
		var old *v1.ContainerStatus
		for j := range previous {
			if previous[j].Name == c.Name {
				old = &previous[j]
			}
		}
		status := g.fromRecord(c, old)
		if status == nil {
			status = g.withoutRecord(c, old, init)
		}
		g.applyReason(c, status)
		g.readiness(c, status, init)
		out = append(out, *status)
	}
	return out
}

// ephemeralStatuses computes the statuses of the ephemeral containers, in the order of the spec. They are never ready, and
// nothing else of the pod's status depends on them.
func (g *generation) ephemeralStatuses() []v1.ContainerStatus {
	specs := make([]v1.Container, 0, len(g.pod.Spec.EphemeralContainers))
	for i := range g.pod.Spec.EphemeralContainers {
		specs = append(specs, v1.Container(g.pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	out := g.containerStatuses(specs, g.in.Previous.EphemeralContainerStatuses, false)
	for i := range out {
		out[i].Ready, out[i].Started = false, nil
	}
	return out
}

// fromRecord makes the status of a container that the runtime has a record of; nil when it has none.
func (g *generation) fromRecord(c *v1.Container, old *v1.ContainerStatus) *v1.ContainerStatus {
	latest := podview.Latest(g.status, c.Name)
	if latest == nil {
		return nil
	}
	status := g.blank(c, old)
	if latest.GetImage() != "" {
		status.Image = latest.GetImage()
	}
	status.ImageID = latest.GetImageRef()
	status.ContainerID = g.id(latest)
	status.User = userOf(latest)
	status.RestartCount = int32(podlabels.RestartOf(latest.GetAnnotations(), latest.GetAttempt()).Attempt()) //nolint:gosec // Attempt bounds it
	status.State = g.state(latest, old)
	for _, other := range g.status.GetContainers() {
		if other != latest && other.GetName() == c.Name && podview.Exited(other) {
			status.LastTerminationState = g.state(other, nil)
			break
		}
	}
	if status.LastTerminationState.Terminated == nil && old != nil {
		status.LastTerminationState = lastOf(old, status.ContainerID)
	}
	return status
}

// userOf is who a container's first process was started as; nil when the runtime does not say.
func userOf(c *lifecyclev1.Container) *v1.ContainerUser {
	user := c.GetUser()
	if user == nil {
		return nil
	}
	return &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: user.GetUid(), GID: user.GetGid(), SupplementalGroups: slices.Clone(user.GetSupplementalGroups())}}
}

// lastOf is what an earlier status knew of the end before the container with this ID: the runtime's record of it may
// have been removed since.
func lastOf(old *v1.ContainerStatus, containerID string) v1.ContainerState {
	if old.State.Terminated != nil && old.ContainerID != containerID {
		return *old.State.DeepCopy()
	}
	return *old.LastTerminationState.DeepCopy()
}

func (g *generation) id(c *lifecyclev1.Container) string {
	return g.in.RuntimeName + "://" + c.GetId()
}

// state is the state of one container of the runtime. Old is the status before it, or nil.
func (g *generation) state(c *lifecyclev1.Container, old *v1.ContainerStatus) v1.ContainerState {
	switch {
	case podview.Running(c):
		return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(podview.Time(c.GetStartedAt()))}}
	case podview.Exited(c):
		terminated := &v1.ContainerStateTerminated{
			ExitCode: c.GetExitCode(), Reason: c.GetReason(), Message: c.GetMessage(), ContainerID: g.id(c),
			StartedAt: moment(c.GetStartedAt()), FinishedAt: moment(c.GetFinishedAt()),
		}
		if text := g.in.Messages[c.GetId()]; text != "" {
			if terminated.Message != "" {
				terminated.Message += ": "
			}
			terminated.Message += text
		}
		terminated.Message = g.fit(terminated.Message)
		if terminated.Reason == "" {
			terminated.Reason = reasonError
			if terminated.ExitCode == 0 {
				terminated.Reason = reasonCompleted
			}
		}
		return v1.ContainerState{Terminated: terminated}
	case podview.Alive(c) && old != nil && old.State.Running != nil:
		// It ran and the runtime has lost sight of it. Waiting would make the pod Pending, as if it had never run.
		return v1.ContainerState{Terminated: unknownEnd(g.id(c))}
	}
	if c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_CREATED {
		return v1.ContainerState{Waiting: g.notStarted()} // also when its start was interrupted
	}
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
}

// moment is when a container that has ended started or ended. One that could not be started has no start; a kubelet shows the
// runtime's 0 as it is, the beginning of 1970, and so clients know it.
func moment(t *timestamppb.Timestamp) metav1.Time {
	if t == nil {
		return metav1.Unix(0, 0)
	}
	return metav1.NewTime(t.AsTime())
}

// notStarted is what a container waits for that has not been started, as far as the spec of its pod says.
func (g *generation) notStarted() *v1.ContainerStateWaiting {
	if len(g.pod.Spec.InitContainers) > 0 {
		return &v1.ContainerStateWaiting{Reason: reasonPodInitializing}
	}
	return &v1.ContainerStateWaiting{Reason: reasonContainerCreating}
}

// maxMessages is how much of the last words of all containers of a pod its status holds, in bytes, each having an equal part.
// The kubelet's number.
const maxMessages = 12 << 10

// fit cuts the last words of a container to its part of what the pod's status holds.
func (g *generation) fit(message string) string {
	spec := &g.pod.Spec
	part := maxMessages / max(len(spec.Containers)+len(spec.InitContainers)+len(spec.EphemeralContainers), 1)
	if len(message) <= part {
		return message
	}
	return strings.ToValidUTF8(message[:part], "")
}

// blank is the part of a container's status that comes from the spec, with nothing known of its state. Old is the status before, or
// nil.
func (g *generation) blank(c *v1.Container, old *v1.ContainerStatus) *v1.ContainerStatus {
	made := podview.Latest(g.status, c.Name)
	status := &v1.ContainerStatus{Name: c.Name, Image: c.Image, VolumeMounts: volumeMounts(c, made)}
	if made != nil {
		status.Resources = g.containerResources(c, made, old)
		status.AllocatedResources = c.Resources.Requests.DeepCopy()
	}
	return status
}

// withoutRecord makes the status of a container that the runtime knows nothing of: it was not made yet, or its record is
// gone.
func (g *generation) withoutRecord(c *v1.Container, old *v1.ContainerStatus, init bool) *v1.ContainerStatus {
	status := g.blank(c, old)
	status.State.Waiting = g.notStarted()
	switch {
	case old != nil && old.State.Terminated != nil:
		return old.DeepCopy() // it has ended, and the record was cleaned up
	case init && !podset.IsSidecar(c) && decide.Initialized(g.pod, g.status):
		status.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			Reason:  reasonCompleted,
			Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
		}}
	case old == nil:
	default:
		status.RestartCount = old.RestartCount
		status.LastTerminationState = *old.LastTerminationState.DeepCopy()
		if old.State.Running == nil || status.LastTerminationState.Terminated != nil {
			break
		}
		// It ran, and its end was missed. With a last state the pod counts it as ended, not as never begun.
		status.LastTerminationState.Terminated = &v1.ContainerStateTerminated{
			Reason: reasonStatusUnknown, ExitCode: codeUnknown,
			Message: "The container could not be located when the pod was deleted.  The container used to be Running",
		}
		if g.pod.DeletionTimestamp == nil {
			status.RestartCount++
		}
	}
	return status
}

// applyReason shows why a container that is to run does not. An end that does not say that the container is run again, for
// example exit code 0 under OnFailure after a probe has failed, is its last state from the beginning: the API server refuses
// every later status of a pod that has once shown it as the state.
func (g *generation) applyReason(c *v1.Container, status *v1.ContainerStatus) {
	reason, ok := g.in.Reasons[c.Name]
	ended := status.State.Terminated
	if status.State.Running != nil || g.in.Terminal || g.pod.DeletionTimestamp != nil || !ok && ended == nil {
		return
	}
	if ended != nil {
		if decide.KindOf(g.pod, c.Name) == decide.Init && ended.ExitCode == 0 {
			return
		}
		if !g.restarts(c, ended) || !ok && decide.Restarts(g.pod, c, decide.Ending{Code: ended.ExitCode}) {
			return
		}
		status.LastTerminationState = status.State
	}
	status.State = v1.ContainerState{Waiting: g.notStarted()}
	if ok {
		status.State.Waiting = &v1.ContainerStateWaiting{Reason: reason.Reason, Message: reason.Message}
	}
}

// readiness sets the flags started and ready. It is the one place where results of probes come into the status: without
// a prober (nil functions) a container with a probe counts as one without, started and ready when it runs.
func (g *generation) readiness(c *v1.Container, status *v1.ContainerStatus, init bool) {
	latest := podview.Latest(g.status, c.Name)
	started := status.State.Running != nil
	if started && c.StartupProbe != nil && g.in.Started != nil {
		started = g.in.Started(latest.GetId())
	}
	status.Started = &started
	if init && !podset.IsSidecar(c) {
		status.Ready = status.State.Terminated != nil && status.State.Terminated.ExitCode == 0
		return
	}
	status.Ready = started
	if started && c.ReadinessProbe != nil && g.in.Readiness != nil {
		status.Ready = g.in.Readiness(latest.GetId())
	}
}
