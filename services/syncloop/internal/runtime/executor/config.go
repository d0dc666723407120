// Package executor makes the runtime match a pod. It is the act part of a pod worker: package decide decides, and this
// package acts through the CRI. No other package on the node changes the runtime. It keeps no state that running
// containers need: everything is recovered from pleg's observations.
package executor

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// Config holds the dependencies and settings of a Manager.
type Config struct {
	// Runtime returns the connected runtime service, or an error until there is one. Required.
	Runtime func() (internalapi.RuntimeService, error)
	// Images returns the connected image service, or an error until there is one. Required.
	Images func() (internalapi.ImageManagerService, error)
	// Clock is the time. Required.
	Clock clock.WithTicker
	// Tracer makes the spans of phases and CRI calls; nil traces nothing.
	Tracer trace.Tracer
	// Logger logs changes of containers; nil is slog.Default.
	Logger *slog.Logger
	// Metrics counts and times starts, ImageMetrics counts and times pulls; nil records nothing.
	Metrics      *Metrics
	ImageMetrics *images.Metrics
	// Phases records the duration of each phase of a pod's start; nil records nothing.
	Phases *phases.Book
	// Events records events about pods, as the kubelet does; nil discards them.
	Events Events
	// Credentials returns the node's credentials for a repository of images, for example "registry.example.com/shop/web",
	// the best first; nil is a node without any.
	Credentials func(ctx context.Context, repository string) []*runtimeapi.AuthConfig
	// Providers calls the node's credential providers before each pull; nil is a node without any.
	Providers images.Providers
	// NodeName is the value of spec.nodeName in the downward API.
	NodeName string
	// HostIPs holds the values of status.hostIP and status.hostIPs in the downward API. They are also the addresses of
	// pods on the host's network. Required.
	HostIPs HostIPs
	// Node returns the Node with its allocatable resources; nil is a node without a Node object. It is called with a short
	// timeout. If it fails, containers start with the last known Node.
	Node func(context.Context) (*v1.Node, error)
	// NodeFile is the path of the file that keeps the last known Node for the next process; empty keeps nothing.
	NodeFile string
	// PodLogsDir is the folder that holds one folder of logs per pod, for example /var/log/pods. Required.
	PodLogsDir string
	// RootDir is the folder that holds the pods' folders (hosts files, termination messages, empty directories). Required.
	RootDir string
	// UserIDs returns the user and group IDs of a pod with its own user namespace; nil is a node without user namespaces
	// for pods.
	UserIDs func(types.UID) (containerspec.IDs, error)
	// Cgroups keeps one cgroup per pod; nil puts all pods into one cgroup.
	Cgroups Cgroups
	// Resizes knows the resources that resized pods run with; nil is a node that resizes no pod.
	Resizes Resizes
	// RuntimeClasses returns the runtime handler of a pod. Required.
	RuntimeClasses RuntimeClasses
	// Services returns the environment variables with the addresses of services. Required.
	Services Services
	// Objects returns the config maps and secrets that pods reference. Required.
	Objects Objects
	// Claims receives the pods that have claims of volumes. Required.
	Claims Claims
	// Devices has the devices of pods; nil is a node without device plugins.
	Devices Devices
	// ResourceClaims prepares the resource claims of pods; nil is a node without an API server, which refuses them.
	ResourceClaims ResourceClaims
	// Volumes prepares the volumes of pods. Required.
	Volumes Volumes
	// Issued lists the stores, other than the above, that issue something to pods and drop it when a pod ends.
	Issued []Issued
	// CgroupDriver is "cgroupfs" or "systemd". It decides the name of the parent cgroup of all pods. Empty is cgroupfs.
	CgroupDriver string
	// MemoryQoS protects and throttles the memory of containers. NotForPods is what is reserved on the machine.
	MemoryQoS  resources.MemoryQoS
	NotForPods []v1.ResourceList
	// Kubelet is the node's configuration with its defaults set. Required.
	Kubelet *kubeletconfigv1beta1.KubeletConfiguration
	// Endings records the preStop hooks that have ended, so that neither this process nor the next one runs a hook again
	// when a kill is repeated. It also records the containers that were stopped to be replaced. Required.
	Endings Endings
	// Garbage removes unneeded containers and sandboxes later, by RemoveGarbage; nil removes them at once.
	Garbage Garbage
	// Liveness and Startup return the results of probes by container ID; nil is a node without a prober.
	Liveness, Startup func(containerID string) decide.ProbeResult
}

// Garbage queues items for removal; *containergc.Collector implements it. Put does not block.
type Garbage interface {
	Put(ctx context.Context, items []containergc.Item)
}

// Endings records the progress of stopping containers; *gracebook.Book implements it.
type Endings interface {
	// PreStopped reports whether a container's preStop hook has ended.
	PreStopped(pod types.UID, container string) bool
	// NotePreStop records that the hook has ended. After an error, the next process does not know it.
	NotePreStop(pod types.UID, container string) error
	// Replaced reports whether a container was stopped to be replaced.
	Replaced(pod types.UID, container string) bool
	// NoteReplaced records that a container is about to be replaced. After an error, the next process does not know it.
	NoteReplaced(pod types.UID, container string) error
	// ForgetContainer drops the records of a removed container, Forget the records of a removed pod.
	ForgetContainer(pod types.UID, container string) error
	Forget(pod types.UID) error
}

// UnsupportedError reports a field of a pod that this version does not support. SyncPod returns it before anything of
// the pod is started; the pod's status shows its message.
type UnsupportedError = containerspec.UnsupportedError

// ContainerReason is the reason why a container waits.
type ContainerReason = podstatus.Reason

// Result is the outcome of a SyncPod.
type Result struct {
	// Reasons holds the containers that could not be started, by name, with the reason in the pod's status.
	Reasons map[string]ContainerReason
	// SandboxError is the reason why the sandbox could not be created, or was not tried (an *UnsupportedError, or a
	// *volumes.NotReadyError); nil if the sandbox is up.
	SandboxError error
	// ResizeError is the error of a failed resize; nil if the resize succeeded or there was none.
	ResizeError error
	// Cgroup holds the limits of the pod's cgroup; nil if there is none or they cannot be read.
	Cgroup *resources.Resources
	// RetryAfter is the time until the next sync is due, for example the end of a back-off; 0 if none is known. It is also
	// set with an error if the error says when to retry.
	RetryAfter time.Duration
	// Wrote is true if the sync changed something in the runtime. Then a status observed before the sync is out of date.
	Wrote bool
}
