// Package decide says what is to be done so that the runtime matches a pod. It is pure: what the pod should be, what was
// observed of it and the facts of the moment go in, Actions come out; package executor carries them out. The same
// input gives the same actions, so a restarted process goes on where the one before it was.
//
// A pod goes through these in order:
//
//	sandbox   made when there is none, or the one there is cannot be used; the pod is then begun again from its first
//	          init container
//	again     a rule of a container that has ended may ask for the same in the sandbox that there is: all containers are
//	          removed, and the first ones started
//	ephemeral those that are new are started once, whatever the others do
//	init      one after another, each when the one before has ended well; a restartable init container (sidecar)
//	          counts as ended when it has started, and is kept up from then on
//	ordinary  all at once, each restarted as its policy says, after its back-off
//	over      nothing runs that would be kept and nothing is to be started: sidecars and sandbox are stopped
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

// ProbeResult is what a probe has last come to.
type ProbeResult int

const (
	// Unknown is a probe that has not run, or that nobody runs.
	Unknown ProbeResult = iota
	// Success is a probe that holds.
	Success
	// Failure is a probe that has failed as often as its threshold says.
	Failure
)

// Facts are what Pod must know beside the pod and what was observed of it.
type Facts struct {
	// Now is the moment of the decision.
	Now time.Time
	// BackoffMax is the longest crash back-off; 0 is DefaultBackoffMax.
	BackoffMax time.Duration
	// Liveness and Startup give the results of probes by container ID; nil is a node without a prober.
	Liveness, Startup func(containerID string) ProbeResult
	// Replaced says whether a container was killed as [SpecChanged] or [Resized], also by a process before this one. Nil is nobody who
	// remembers it.
	Replaced func(containerID string) bool
	// Resized is true for a pod that was to be resized since it was started. Actuated is what its containers run with.
	Resized  bool
	Actuated resize.Actuated
	// Logged gives the restart count that follows the logs of a container's name: what the runtime has lost, as after a
	// reboot, was there all the same. Nil is a node without logs.
	Logged func(container string) int
}

// Kind is the kind of a container in a pod's spec.
type Kind int

const (
	// Ordinary is a container of spec.containers.
	Ordinary Kind = iota
	// Init is a container of spec.initContainers that must end before the next one starts.
	Init
	// Sidecar is a container of spec.initContainers with the restart policy Always.
	Sidecar
	// Ephemeral is a container of spec.ephemeralContainers: it is started once, holds nothing up and is waited for by nobody.
	Ephemeral
)

// Why is the cause of killing a container.
type Why int

const (
	// SpecChanged is a container that was made from another spec.
	SpecChanged Why = iota
	// LivenessFailed is a container whose liveness probe has failed.
	LivenessFailed
	// StartupFailed is a container whose startup probe has failed.
	StartupFailed
	// StateUnknown is a container of which the runtime cannot say whether it runs.
	StateUnknown
	// NotWanted is a container that the pod's spec does not have, or that runs in a sandbox the pod has left.
	NotWanted
	// AllRestart is a container of a pod that begins again because of another one's end.
	AllRestart
	// Resized is a container that has to be made again to have other resources.
	Resized
)

// Kill is a container to kill.
type Kill struct {
	// ContainerID is the runtime's ID.
	ContainerID string
	// Name is the name in the spec.
	Name string
	// Why is the cause, and Message says it to people.
	Why     Why
	Message string
}

// Start is a container to create and start.
type Start struct {
	// Container is its spec. It points into the pod that was given.
	Container *v1.Container
	// Target is the name of the container whose processes an Ephemeral one is to see; empty for none.
	Target string
	// Kind is what kind of container it is.
	Kind Kind
	// Restart is where it stands in the row of its kind, and why it is started.
	Restart podlabels.Restart
}

// Wait is a container that is to be started, and waits for the end of its crash back-off.
type Wait struct {
	// Container is its spec.
	Container *v1.Container
	// Delay is how long the back-off is as a whole, Until is when it ends.
	Delay time.Duration
	Until time.Time
}

// Actions is what is to be done, in the order of the fields.
type Actions struct {
	// StopAll kills all containers and stops all sandboxes.
	StopAll bool
	// StopSandboxes are ready sandboxes that the pod does not use, to be stopped with what runs in them.
	StopSandboxes []string
	// Kill are containers to kill.
	Kill []Kill
	// Reset are containers to remove with all that the runtime knows of them, in this order; those that are in Kill, too,
	// are killed before, without a grace period. Whoever is interrupted in it finds at the next decision that it goes on.
	Reset []string
	// CreateSandbox is true when a sandbox is to be made, with Attempt as its number.
	CreateSandbox bool
	Attempt       uint32
	// SandboxReason says why the sandbox cannot be used, as the condition PodReadyToStartContainers shows it.
	SandboxReason string
	// SandboxID is the sandbox to start containers in, when none is made.
	SandboxID string
	// Resize is what is to be changed of the containers that run, and of the pod's cgroup.
	Resize resize.Plan
	// Start are the containers to start, one after another.
	Start []Start
	// Wait are the containers in their crash back-off.
	Wait []Wait
}

// Nothing says whether there is nothing to be done now.
func (a Actions) Nothing() bool {
	return !a.StopAll && !a.CreateSandbox && len(a.StopSandboxes) == 0 && len(a.Kill) == 0 && len(a.Reset) == 0 && len(a.Start) == 0 &&
		a.Resize.Nothing()
}

// Pod decides what is to be done for a pod.
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

// SandboxChange says why a pod needs a new sandbox, in the kubelet's words, or nothing when the one that it has is good.
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
	// asked says whose ends ask to begin the pod again, for causeOf.
	asked []string
	// resized has the names of the containers that are made again to have other resources.
	resized []string
}

// newSandbox decides for a pod whose sandbox is missing or cannot be used: begin again, or leave it because it is over.
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

// exitCode is the code that a container ended with, or the code of SIGKILL for one that has not ended in a sandbox that
// is given up: it will not end in another way.
func exitCode(c *lifecyclev1.Container) int32 {
	if podview.Exited(c) {
		return c.GetExitCode()
	}
	return 137
}

// killUnwanted kills what runs without being in the spec, and what runs in a sandbox that is not used.
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

// notWhenDeleted takes back every start: a pod that is being deleted only ends.
func (d *decision) notWhenDeleted() {
	if d.pod.DeletionTimestamp != nil {
		d.Start, d.Wait = nil, nil
		d.Resize = resize.Plan{}
	}
}

func (d *decision) kill(c *lifecyclev1.Container, why Why, message string) {
	d.Kill = append(d.Kill, Kill{ContainerID: c.GetId(), Name: c.GetName(), Why: why, Message: message})
}

// start starts a container, or lets it wait while its crash back-off lasts.
func (d *decision) start(c *v1.Container) { d.startWhenDue(d.restartOf(c)) }

func (d *decision) startWhenDue(s Start, delay time.Duration, until time.Time) {
	if until.After(d.facts.Now) {
		d.Wait = append(d.Wait, Wait{Container: s.Container, Delay: delay, Until: until})
		return
	}
	s.Kind = KindOf(d.pod, s.Container.Name)
	d.Start = append(d.Start, s)
}

// KindOf says what kind of container a name is in a pod's spec. A name that the spec does not have is Ordinary.
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
