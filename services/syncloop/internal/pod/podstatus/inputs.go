// Package podstatus computes the v1.PodStatus of a pod from what was observed of it. It is pure: time, probe results,
// termination messages and the previous status are passed in, so the same input gives the same status after a restart.
package podstatus

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// Reason is why a container waits, as the status shows it.
type Reason struct {
	// Reason is one word, for example "ErrImagePull" or "CrashLoopBackOff".
	Reason string
	// Message is the sentence beside it.
	Message string
}

// Inputs is what Generate needs beside the pod and what was observed of it.
type Inputs struct {
	// Now is the time of the computation; a condition that changes gets it as its transition time.
	Now time.Time
	// Reasons has the containers that the last sync could not start, by name: executor.Result.Reasons.
	Reasons map[string]Reason
	// Previous is the status that was computed before; zero after a restart. Its terminal phase, start time, transition
	// times, reason and message are kept.
	Previous v1.PodStatus
	// RuntimeName is the runtime's own name, the scheme of container IDs ("containerd://…"); empty is "containerd".
	RuntimeName string
	// HostIPs are the addresses of the node, the primary one first.
	HostIPs []string
	// Readiness says whether the readiness probe of a running container holds; nil when there is no prober. It is asked
	// only for containers with a readiness probe.
	Readiness func(containerID string) bool
	// Started says whether the startup probe of a running container has succeeded; nil when there is no prober. It is
	// asked only for containers with a startup probe.
	Started func(containerID string) bool
	// Unhealthy says whether the liveness or startup probe of a container has failed, also of one that has ended since; nil when
	// there is no prober. It is asked only for containers with such a probe.
	Unhealthy func(containerID string) bool
	// Replaced says whether a container was stopped because another one takes its place: the end of it is not the pod's. Nil is
	// nobody who knows.
	Replaced func(containerID string) bool
	// ProbedSince says when the last probe of a container succeeded that it needs to be ready, zero when none has; nil when there
	// is no prober.
	ProbedSince func(containerID string) time.Time
	// Messages has the termination messages of ended containers, by container ID.
	Messages map[string]string
	// Terminal is true when the pod's worker has finished: nothing is restarted any more, whatever the restart policy.
	Terminal bool
	// Reason and Message are of the pod as a whole, when something holds it up that is not about one container, for
	// example a volume that cannot be mounted. They do not count for a pod that has ended: it keeps those of Previous.
	Reason, Message string
	// Resize is the record of a resized pod; zero for every other pod.
	Resize resize.Record
	// Undecided is true while the resize of this version of the pod is not decided: the status is about the version before it.
	Undecided bool
	// Cgroup has the limits of the pod's cgroup; nil if there is none or they are not known.
	Cgroup *resources.Resources
}

// The reasons of a pod that something holds up which is not about one container. A kubelet has them in its events only.
const (
	// ReasonSandbox is of a pod whose sandbox cannot be made.
	ReasonSandbox = "FailedCreatePodSandBox"
	// ReasonCgroup is of a pod whose cgroup cannot be made.
	ReasonCgroup = "FailedCreatePodContainer"
	// ReasonVolumes is of a pod whose volumes are not in place.
	ReasonVolumes = "FailedMount"
	// ReasonUnsupported is of a pod that asks for something that this node cannot give it: nothing of it is tried.
	ReasonUnsupported = "UnsupportedPodSpec"
	// ReasonNameTaken is of a pod that waits for the end of another one of its name.
	ReasonNameTaken = "NameTaken"
	// ReasonNoNetwork is of a pod that waits for the network of pods.
	ReasonNoNetwork = "NetworkNotReady"
)

// holdsUp tells whether a reason is one of those above, which the API server may still have when it is over.
func holdsUp(reason string) bool {
	switch reason {
	case ReasonSandbox, ReasonCgroup, ReasonVolumes, ReasonUnsupported, ReasonNameTaken, ReasonNoNetwork:
		return true
	}
	return false
}
