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
	// codeUnknown is the exit code of a container whose end was not observed.
	codeUnknown = 137
)

// containerStatuses computes the statuses of the init or of the ordinary containers, in the order of the spec.
func (g *generation) containerStatuses(
	specs []v1.Container, previous []v1.ContainerStatus, init bool,
) []v1.ContainerStatus {
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
		if !init { // as in the kubelet, init containers do not show theirs
			status.AllocatedResourcesStatus = g.devices(c, status, old)
		}
		out = append(out, *status)
	}
	return out
}

// devices returns the devices of a container. An ended container shows its last ones after they were given back.
func (g *generation) devices(c *v1.Container, status, old *v1.ContainerStatus) []v1.ResourceStatus {
	if g.in.Devices == nil {
		return nil
	}
	devices := g.in.Devices(c.Name)
	if len(devices) == 0 && status.State.Terminated != nil && old != nil {
		return old.AllocatedResourcesStatus
	}
	return devices
}

// ephemeralStatuses computes the statuses of the ephemeral containers, in the order of the spec. They are never ready,
// and do not affect the rest of the pod's status.
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

// fromRecord returns the status of a container with a record in the runtime; nil if it has none.
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

// userOf returns the user of a container's first process; nil if the runtime does not report it.
func userOf(c *lifecyclev1.Container) *v1.ContainerUser {
	user := c.GetUser()
	if user == nil {
		return nil
	}
	return &v1.ContainerUser{
		Linux: &v1.LinuxContainerUser{
			UID: user.GetUid(), GID: user.GetGid(), SupplementalGroups: slices.Clone(user.GetSupplementalGroups()),
		},
	}
}

// lastOf returns the last termination before the container with this ID in an earlier status, because the runtime's
// record of it may have been removed.
func lastOf(old *v1.ContainerStatus, containerID string) v1.ContainerState {
	if old.State.Terminated != nil && old.ContainerID != containerID {
		return *old.State.DeepCopy()
	}
	return *old.LastTerminationState.DeepCopy()
}

func (g *generation) id(c *lifecyclev1.Container) string {
	return g.in.RuntimeName + "://" + c.GetId()
}

// state returns the state of one container in the runtime. old is the previous status, or nil.
func (g *generation) state(c *lifecyclev1.Container, old *v1.ContainerStatus) v1.ContainerState {
	switch {
	case podview.Running(c):
		return v1.ContainerState{
			Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(podview.Time(c.GetStartedAt()))},
		}
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
		// It ran and the runtime has lost it. Waiting would make the pod Pending, as if it had never run.
		return v1.ContainerState{Terminated: unknownEnd(g.id(c))}
	}
	if c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_CREATED {
		return v1.ContainerState{Waiting: g.notStarted()} // also if its start was interrupted
	}
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}
}

// moment returns the start or end of an ended container. One that failed to start has no start; as the kubelet, the
// status has the runtime's 0, the beginning of 1970.
func moment(t *timestamppb.Timestamp) metav1.Time {
	if t == nil {
		return metav1.Unix(0, 0)
	}
	return metav1.NewTime(t.AsTime())
}

// notStarted returns what an unstarted container waits for, according to the spec of its pod.
func (g *generation) notStarted() *v1.ContainerStateWaiting {
	if len(g.pod.Spec.InitContainers) > 0 {
		return &v1.ContainerStateWaiting{Reason: reasonPodInitializing}
	}
	return &v1.ContainerStateWaiting{Reason: reasonContainerCreating}
}

// maxMessages is the kubelet's limit in bytes for the termination messages of all containers of a pod; each container
// has an equal part.
const maxMessages = 12 << 10

// fit truncates the termination message of a container to its part.
func (g *generation) fit(message string) string {
	spec := &g.pod.Spec
	part := maxMessages / max(len(spec.Containers)+len(spec.InitContainers)+len(spec.EphemeralContainers), 1)
	if len(message) <= part {
		return message
	}
	return strings.ToValidUTF8(message[:part], "")
}

// blank returns the part of a container's status that comes from the spec, without a state. old is the previous status,
// or nil.
func (g *generation) blank(c *v1.Container, old *v1.ContainerStatus) *v1.ContainerStatus {
	made := podview.Latest(g.status, c.Name)
	status := &v1.ContainerStatus{Name: c.Name, Image: c.Image, VolumeMounts: volumeMounts(c, made)}
	if made != nil {
		status.Resources = g.containerResources(c, made, old)
		status.AllocatedResources = c.Resources.Requests.DeepCopy()
	}
	return status
}

// withoutRecord returns the status of a container without a record in the runtime: it was not created yet, or its
// record was removed.
func (g *generation) withoutRecord(c *v1.Container, old *v1.ContainerStatus, init bool) *v1.ContainerStatus {
	status := g.blank(c, old)
	status.State.Waiting = g.notStarted()
	switch {
	case g.again && old != nil && old.State.Waiting == nil:
		return removed(status, old)
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
		// It ran, and its end was missed. With a last state it counts as ended, and not as never started.
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

// applyReason shows why a container does not run although it should. An end after which the container would not be
// restarted according to its policy, for example exit code 0 under OnFailure after a failed probe, is shown only as its
// last state: the API server would refuse every later status of a pod that has once shown it as the state.
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

// readiness sets the fields started and ready. It is the only place where probe results enter the status: without a
// prober (nil functions) a container with a probe is started and ready when it runs, as one without a probe.
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
