// Package executor makes the runtime match a pod. It is the act part of a pod worker: package decide says what is to
// be done, this package does it through the CRI, and is the only one on the node that changes the runtime. It keeps no
// state that running containers need: everything is recovered from what pleg observes.
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

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/hostips"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// Config is what a Manager needs.
type Config struct {
	// Runtime hands out the connected runtime service, or says why there is none yet. Required.
	Runtime func() (internalapi.RuntimeService, error)
	// Images hands out the connected image service, or says why there is none yet. Required.
	Images func() (internalapi.ImageManagerService, error)
	// Clock is the time. Required.
	Clock clock.WithTicker
	// Tracer makes the spans of phases and CRI calls; nil traces nothing.
	Tracer trace.Tracer
	// Logger is where what happens to containers is told; nil is slog.Default.
	Logger *slog.Logger
	// Metrics counts and times what is started, ImageMetrics the pulls; nil counts nothing.
	Metrics      *Metrics
	ImageMetrics *images.Metrics
	// Phases is told how long each part of a pod's start took; nil keeps nothing.
	Phases *phases.Book
	// Events is told what was done for pods, as the kubelet's events tell it; nil is for nobody to read.
	Events Events
	// Credentials gives the node's own credentials for a repository of images, for example "registry.example.com/shop/web",
	// the best first; nil has none.
	Credentials func(ctx context.Context, repository string) []*runtimeapi.AuthConfig
	// Providers asks the credential providers of the node before each pull; nil has none.
	Providers images.Providers
	// NodeName is what spec.nodeName of the downward API says.
	NodeName string
	// HostIPs are what status.hostIP and status.hostIPs of it say, and the addresses of pods of the machine's network. Required.
	HostIPs *hostips.Addresses
	// Node asks for the Node, which knows what of the machine is for pods; nil for a node without one. Containers are started
	// with what was known last when it fails, and it is not given long.
	Node func(context.Context) (*v1.Node, error)
	// NodeFile is where what was known last is kept for the process that comes after this one; empty keeps nothing.
	NodeFile string
	// PodLogsDir is the folder with one folder of logs per pod, for example /var/log/pods. Required.
	PodLogsDir string
	// RootDir holds the folders of pods (hosts files, termination messages, empty directories). Required.
	RootDir string
	// UserIDs gives the user and group IDs of a pod with a user namespace of its own. Nil is a node that has none for pods.
	UserIDs func(types.UID) (containerspec.IDs, error)
	// Cgroups gives each pod a cgroup of its own; nil puts all pods under one.
	Cgroups Cgroups
	// Resizes knows what resized pods run with; nil resizes no pod.
	Resizes Resizes
	// RuntimeClasses says which handler of the runtime a pod asks for; nil is a node on which a runtime class is named as its handler.
	RuntimeClasses RuntimeClasses
	// Services gives the variables that tell containers where services are; nil is a node without an API server, which has none.
	Services Services
	// Objects gives the config maps and secrets that pods name; nil is a node without any.
	Objects configobjects.Source
	// Volumes has the volumes of pods in place. Required.
	Volumes Volumes
	// Issued is what else others hand out to pods, and forget when a pod ends.
	Issued []Issued
	// CgroupDriver is "cgroupfs" or "systemd": how the cgroup that all pods are put under is named. Empty is cgroupfs.
	CgroupDriver string
	// Kubelet is the node's configuration, defaulted. Required.
	Kubelet *kubeletconfigv1beta1.KubeletConfiguration
	// Endings remembers which preStop hooks have ended, so that none of them is run again when a kill is repeated, by this process
	// or the next one, and which containers were stopped because another one takes their place. Required.
	Endings Endings
	// Garbage removes what nobody needs of pods when it is its turn, by RemoveGarbage; nil has it removed at once.
	Garbage Garbage
	// Liveness and Startup give the results of probes by container ID; nil is a node without a prober.
	Liveness, Startup func(containerID string) decide.ProbeResult
}

// Garbage is given what is to be removed; *containergc.Collector is one. Put does not wait.
type Garbage interface {
	Put(ctx context.Context, items []containergc.Item)
}

// Endings remembers how far the ends of containers have come; *gracebook.Book does it.
type Endings interface {
	// PreStopped tells whether a container's preStop hook has ended.
	PreStopped(pod types.UID, container string) bool
	// NotePreStop notes that it has. With an error the next process does not know of it.
	NotePreStop(pod types.UID, container string) error
	// Replaced tells whether a container was stopped because another one takes its place.
	Replaced(pod types.UID, container string) bool
	// NoteReplaced notes that one is about to be. With an error the next process does not know of it.
	NoteReplaced(pod types.UID, container string) error
	// ForgetContainer drops what is known of a container that is gone, Forget of a pod.
	ForgetContainer(pod types.UID, container string) error
	Forget(pod types.UID) error
}

// UnsupportedError says that a pod asks for something that this version cannot give it. SyncPod returns it before
// anything of the pod is started; the status shows its message.
type UnsupportedError = containerspec.UnsupportedError

// ContainerReason is why a container waits.
type ContainerReason = podstatus.Reason

// Result is what a SyncPod has come to.
type Result struct {
	// Reasons has the containers that could not be started, by name, with the reason that the status shows.
	Reasons map[string]ContainerReason
	// SandboxError is why the sandbox could not be made, or is not tried (an *UnsupportedError, or a *volumes.NotReadyError); nil when
	// it is up.
	SandboxError error
	// ResizeError is why a resize failed; nil if it did not, or if there was none.
	ResizeError error
	// Cgroup has the limits of the pod's cgroup; nil if there is none or they cannot be read.
	Cgroup *resources.Resources
	// RetryAfter is when work is due again, for example the end of a back-off; 0 when nothing is known to be. It is set
	// beside an error when the error knows.
	RetryAfter time.Duration
	// Wrote is true when something in the runtime was changed, so that a status observed before is out of date.
	Wrote bool
}
