// Package decide computes the actions that make the runtime match a pod. It is pure: its inputs are the pod, its
// observed state and the facts of the moment, and its output is Actions, which package executor carries out. The same
// input yields the same actions, so a restarted process continues where the previous one was.
//
// A pod goes through these stages in order:
//
//	sandbox   created if there is none, or the present one is unusable; the pod then starts again from its first
//	          init container
//	again     a rule of an ended container may require the same in the present sandbox: all containers are removed,
//	          and the first ones started
//	ephemeral new ones are started once, regardless of the others
//	init      one after another, each when the previous one has succeeded; a restartable init container (sidecar)
//	          counts as complete when it has started, and is kept running from then on
//	ordinary  all at once, each restarted according to its policy, after its back-off
//	over      nothing runs that should be kept and nothing is to be started: sidecars and sandbox are stopped
package decide

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// ProbeResult is the last result of a probe.
type ProbeResult int

const (
	// Unknown means that the probe has not run, or that there is no prober.
	Unknown ProbeResult = iota
	// Success means that the probe succeeds.
	Success
	// Failure means that the probe has reached its failure threshold.
	Failure
)

// Facts holds the inputs of Pod in addition to the pod and its observed state.
type Facts struct {
	// Now is the time of the decision.
	Now time.Time
	// BackoffMax is the longest crash back-off; 0 means DefaultBackoffMax.
	BackoffMax time.Duration
	// Liveness and Startup return the results of probes by container ID; nil without a prober.
	Liveness, Startup func(containerID string) ProbeResult
	// Replaced reports whether a container was killed as [SpecChanged] or [Resized], or has ended with an earlier life of
	// its pod, possibly by an earlier process; nil if that is not recorded.
	Replaced func(containerID string) bool
	// Resized is true for a pod with a resize since its start. Actuated holds the present resources of its containers.
	Resized  bool
	Actuated resize.Actuated
	// Logged returns the restart count after the logs of a container's name, which survive a loss of the runtime's
	// records, as after a reboot; nil without logs.
	Logged func(container string) int
}

// Kind is the kind of a container in a pod's spec.
type Kind int

const (
	// Ordinary is a container of spec.containers.
	Ordinary Kind = iota
	// Init is a container of spec.initContainers that must complete before the next one starts.
	Init
	// Sidecar is a container of spec.initContainers with the restart policy Always.
	Sidecar
	// Ephemeral is a container of spec.ephemeralContainers: it is started once and nothing waits for it.
	Ephemeral
)

// Why is the reason for killing a container.
type Why int

const (
	// SpecChanged means that the container was created from another spec.
	SpecChanged Why = iota
	// LivenessFailed means that the liveness probe has failed.
	LivenessFailed
	// StartupFailed means that the startup probe has failed.
	StartupFailed
	// StateUnknown means that the runtime does not know whether the container runs.
	StateUnknown
	// NotWanted means that the container is not in the pod's spec, or runs in a sandbox that the pod has left.
	NotWanted
	// AllRestart means that all containers of the pod are restarted because of another one's end.
	AllRestart
	// Resized means that the container must be recreated to change its resources.
	Resized
)

// Kill is a container to kill.
type Kill struct {
	// ContainerID is the runtime's ID.
	ContainerID string
	// Name is the name in the spec.
	Name string
	// Why is the reason, and Message its text for people.
	Why     Why
	Message string
}

// Start is a container to create and start.
type Start struct {
	// Container is its spec. It points into the input pod.
	Container *v1.Container
	// Target is the name of the container whose process namespace an Ephemeral one shares; empty for none.
	Target string
	// Kind is the kind of the container.
	Kind Kind
	// Restart is its restart count, its back-off step and its cause.
	Restart podlabels.Restart
}

// Wait is a container that waits for the end of its crash back-off.
type Wait struct {
	// Container is its spec.
	Container *v1.Container
	// Delay is the total back-off, and Until its end.
	Delay time.Duration
	Until time.Time
}

// Actions is what to do, in the order of the fields.
type Actions struct {
	// StopAll kills all containers and stops all sandboxes.
	StopAll bool
	// StopSandboxes are ready sandboxes that the pod does not use, to be stopped with their containers.
	StopSandboxes []string
	// Kill are containers to kill.
	Kill []Kill
	// Reset are containers to remove with all their records in the runtime, in this order; those that are also in Kill are
	// killed before, without a grace period. The next decision continues an interrupted removal.
	Reset []string
	// CreateSandbox is true if a sandbox is to be created, with the number Attempt.
	CreateSandbox bool
	Attempt       uint32
	// SandboxReason is why the sandbox is unusable, for the condition PodReadyToStartContainers.
	SandboxReason string
	// SandboxID is the sandbox for the containers, if none is created.
	SandboxID string
	// Resize is the change of running containers and of the pod's cgroup.
	Resize resize.Plan
	// Start are the containers to start, one after another.
	Start []Start
	// Wait are the containers in their crash back-off.
	Wait []Wait
}

// Nothing reports whether there is nothing to do now.
func (a Actions) Nothing() bool {
	return !a.StopAll && !a.CreateSandbox && len(a.StopSandboxes) == 0 && len(a.Kill) == 0 && len(a.Reset) == 0 &&
		len(a.Start) == 0 &&
		a.Resize.Nothing()
}

// Pod computes the actions for a pod.
func Pod(pod *v1.Pod, status *lifecyclev1.PodStatus, facts Facts) Actions {
	d := &decision{pod: pod, status: status, facts: facts}
	if reason := SandboxChange(pod, status); reason != "" {
		d.SandboxReason = reason
		d.newSandbox()
		return d.Actions
	}
	sandbox := podview.Sandbox(status)
	d.SandboxID, d.Attempt = sandbox.GetId(), sandbox.GetAttempt()
	for _, s := range status.GetSandboxes() {
		if podview.Ready(s) && s.GetId() != d.SandboxID {
			d.StopSandboxes = append(d.StopSandboxes, s.GetId())
		}
	}
	d.killUnwanted()
	if d.beginAgain() {
		return d.Actions
	}
	d.ephemeralContainers()
	if d.initContainers() {
		d.ordinaryContainers()
	}
	d.notWhenDeleted()
	d.resizePod()
	return d.Actions
}

// SandboxChange returns why a pod needs a new sandbox, in the kubelet's words; empty if the present one is usable.
func SandboxChange(pod *v1.Pod, status *lifecyclev1.PodStatus) string {
	sandbox := podview.Sandbox(status)
	switch {
	case len(status.GetSandboxes()) == 0:
		return "no pod sandbox exists"
	case sandbox == nil:
		return "pod sandbox is not ready"
	case sandbox.GetHostNetwork() != pod.Spec.HostNetwork:
		return "network namespace mode changed and sandbox needs to be recreated"
	case !sandbox.GetHostNetwork() && len(sandbox.GetIps()) == 0:
		return "pod sandbox has no IP address"
	}
	return ""
}

// decision is one run of Pod.
type decision struct {
	Actions
	pod    *v1.Pod
	status *lifecyclev1.PodStatus
	facts  Facts
	// restartAllEnds names the containers whose ends require a restart of all containers, for causeOf.
	restartAllEnds []string
	// resized names the containers that are recreated to change their resources.
	resized []string
}

// newSandbox decides for a pod whose sandbox is missing or unusable: start again, or leave it because the pod is over.
func (d *decision) newSandbox() {
	sandboxes := d.status.GetSandboxes()
	if len(sandboxes) > 0 {
		d.Attempt = slices.MaxFunc(sandboxes, func(a, b *lifecyclev1.Sandbox) int {
			return int(a.GetAttempt()) - int(b.GetAttempt())
		}).GetAttempt() + 1
	}
	d.StopAll = podview.AnyAlive(d.status)
	if d.pod.DeletionTimestamp != nil {
		return
	}
	hasRun := len(sandboxes) > 0 && len(d.status.GetContainers()) > 0
	if hasRun && !anyRestarts(d.pod) {
		return
	}
	var ordinary []*v1.Container
	for i := range d.pod.Spec.Containers {
		c := &d.pod.Spec.Containers[i]
		if latest := podview.Latest(d.status, c.Name); latest == nil || d.restarts(c, latest) {
			ordinary = append(ordinary, c)
		}
	}
	if len(ordinary) == 0 {
		return
	}
	d.CreateSandbox = true
	if len(d.pod.Spec.InitContainers) > 0 {
		d.start(&d.pod.Spec.InitContainers[0])
		return
	}
	for _, c := range ordinary {
		d.start(c)
	}
}

// exitCode returns the exit code of a container, or that of SIGKILL for one that has not ended in an abandoned sandbox,
// where it will be killed.
func exitCode(c *lifecyclev1.Container) int32 {
	if podview.Exited(c) {
		return c.GetExitCode()
	}
	return 137
}

// killUnwanted kills containers that are not in the spec, and those in sandboxes that are not used.
func (d *decision) killUnwanted() {
	for _, c := range d.status.GetContainers() {
		switch {
		case !podview.Alive(c):
		case !d.inSpec(c.GetName()):
			d.kill(c, NotWanted, fmt.Sprintf("Container %s is not in the pod's spec", c.GetName()))
		case c.GetSandboxId() != d.SandboxID:
			d.kill(c, NotWanted, fmt.Sprintf("Container %s runs in a sandbox that is not used", c.GetName()))
		case c != podview.LatestIn(d.status, c.GetName(), d.SandboxID):
			d.kill(c, NotWanted, fmt.Sprintf("Container %s has been replaced", c.GetName()))
		}
	}
}

func (d *decision) inSpec(name string) bool {
	named := func(c v1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(d.pod.Spec.Containers, named) || slices.ContainsFunc(d.pod.Spec.InitContainers, named) ||
		slices.ContainsFunc(d.pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name })
}

// notWhenDeleted removes every start, because a pod that is being deleted only ends.
func (d *decision) notWhenDeleted() {
	if d.pod.DeletionTimestamp != nil {
		d.Start, d.Wait = nil, nil
		d.Resize = resize.Plan{}
	}
}

func (d *decision) kill(c *lifecyclev1.Container, why Why, message string) {
	d.Kill = append(d.Kill, Kill{ContainerID: c.GetId(), Name: c.GetName(), Why: why, Message: message})
}

// start starts a container, or delays it during its crash back-off.
func (d *decision) start(c *v1.Container) { d.startWhenDue(d.restartOf(c)) }

func (d *decision) startWhenDue(s Start, delay time.Duration, until time.Time) {
	if until.After(d.facts.Now) {
		d.Wait = append(d.Wait, Wait{Container: s.Container, Delay: delay, Until: until})
		return
	}
	s.Kind = KindOf(d.pod, s.Container.Name)
	d.Start = append(d.Start, s)
}

// KindOf returns the kind of a container in a pod's spec by its name. An unknown name is Ordinary.
func KindOf(pod *v1.Pod, name string) Kind {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == name {
			if podset.IsSidecar(c) {
				return Sidecar
			}
			return Init
		}
	}
	if slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == name }) {
		return Ephemeral
	}
	return Ordinary
}
