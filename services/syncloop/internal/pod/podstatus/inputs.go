// Package podstatus computes the v1.PodStatus of a pod from its observed state. It is pure: time, probe results,
// termination messages and the previous status are passed in, so the same input yields the same status after a restart.
package podstatus

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// Reason is why a container waits, for the status.
type Reason struct {
	// Reason is one word, for example "ErrImagePull" or "CrashLoopBackOff".
	Reason string
	// Message is the sentence for the reason.
	Message string
}

// Inputs holds the inputs of Generate in addition to the pod and its observed state.
type Inputs struct {
	// Now is the time of the computation, and the transition time of changed conditions.
	Now time.Time
	// Reasons maps the names of containers that the last sync could not start to the reasons: executor.Result.Reasons.
	Reasons map[string]Reason
	// Previous is the previously computed status; zero after a restart. Its terminal phase, start time, transition times,
	// reason and message are kept.
	Previous v1.PodStatus
	// RuntimeName is the scheme of container IDs ("containerd://…"); "containerd" if empty.
	RuntimeName string
	// HostIPs are the addresses of the node, the primary one first.
	HostIPs []string
	// Readiness reports whether the readiness probe of a running container succeeds; nil without a prober. It is called
	// only for containers with a readiness probe.
	Readiness func(containerID string) bool
	// Started reports whether the startup probe of a running container has succeeded; nil without a prober. It is called
	// only for containers with a startup probe.
	Started func(containerID string) bool
	// Unhealthy reports whether the liveness or startup probe of a container has failed, even if it has ended since; nil
	// without a prober. It is called only for containers with such a probe.
	Unhealthy func(containerID string) bool
	// Replaced reports whether a container was stopped to be replaced by another one, so that its end is not that of the
	// pod; nil if that is not recorded.
	Replaced func(containerID string) bool
	// ProbedSince returns when the last probe that a container needs for readiness succeeded; zero if none has, and nil
	// without a prober.
	ProbedSince func(containerID string) time.Time
	// Messages maps the IDs of ended containers to their termination messages.
	Messages map[string]string
	// Terminal is true when the pod's worker has finished: nothing is restarted any more, regardless of the restart
	// policy.
	Terminal bool
	// Reason and Message apply to the whole pod, if it is delayed by something other than a container, for example a
	// volume that cannot be mounted. They do not apply to an ended pod, which keeps those of Previous.
	Reason, Message string
	// Resize is the record of a resized pod; zero for every other pod.
	Resize resize.Record
	// Undecided is true while the resize of this version of the pod is not decided: the status is about the version before
	// it.
	Undecided bool
	// Devices returns the devices of a container by resource, and those of its resource claims; nil is a node without
	// devices.
	Devices func(container string) []v1.ResourceStatus
	// VolumeHealth has the conditions of the volumes whose CSI drivers report their health, by name. A healthy one has
	// none.
	VolumeHealth map[string][]v1.VolumeHealthCondition
	// Cgroup holds the limits of the pod's cgroup; nil if there is none or they are unknown.
	Cgroup *resources.Resources
}

// The reasons of a pod that is delayed by something other than a container. The kubelet has them only in its events.
const (
	// ReasonSandbox: the sandbox cannot be created.
	ReasonSandbox = "FailedCreatePodSandBox"
	// ReasonCgroup: the pod's cgroup cannot be created.
	ReasonCgroup = "FailedCreatePodContainer"
	// ReasonVolumes: the volumes are not set up.
	ReasonVolumes = "FailedMount"
	// ReasonUnsupported: the pod needs something that this node does not support, and nothing of it is started.
	ReasonUnsupported = "UnsupportedPodSpec"
	// ReasonDevices: the pod waits for device plugins.
	ReasonDevices = "DevicesNotReady"
	// ReasonClaims: the resource claims are not prepared.
	ReasonClaims = "FailedPrepareDynamicResources"
	// ReasonNameTaken: the pod waits for the end of another one of its name.
	ReasonNameTaken = "NameTaken"
	// ReasonRecord: it is not known whether the pod was evicted, because the record of evictions cannot be read.
	ReasonRecord = "EvictionsUnreadable"
	// ReasonNoNetwork: the pod waits for the pod network.
	ReasonNoNetwork = "NetworkNotReady"
)

// holdsUp reports whether a reason is one of those above. The API server may still have it after the delay is over.
func holdsUp(reason string) bool {
	switch reason {
	case ReasonSandbox, ReasonCgroup, ReasonVolumes, ReasonDevices, ReasonClaims, ReasonUnsupported,
		ReasonNameTaken, ReasonNoNetwork, ReasonRecord:
		return true
	}
	return false
}
