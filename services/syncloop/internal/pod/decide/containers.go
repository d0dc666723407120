package decide

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// Initialized reports whether a pod's init containers are complete, according to its present sandbox: an ordinary
// container that has run there proves it, even if the init containers were removed from the runtime.
func Initialized(pod *v1.Pod, status *lifecyclev1.PodStatus) bool {
	if len(pod.Spec.InitContainers) == 0 {
		return true
	}
	sandbox := podview.Sandbox(status)
	if sandbox == nil {
		return false
	}
	for i := range pod.Spec.Containers {
		c := podview.LatestIn(status, pod.Spec.Containers[i].Name, sandbox.GetId())
		if podview.Alive(c) || podview.Exited(c) {
			return true
		}
	}
	return false
}

// initContainers advances the init containers, and reports whether the ordinary ones may run.
func (d *decision) initContainers() bool {
	inits := d.pod.Spec.InitContainers
	if Initialized(d.pod, d.status) {
		for i := range inits {
			if podset.IsSidecar(&inits[i]) {
				d.keepUp(&inits[i])
			}
		}
		return true
	}
	// The last one with a record shows the progress of the pod, because earlier ones may have been removed.
	last := len(inits) - 1
	for last >= 0 && podview.LatestIn(d.status, inits[last].Name, d.SandboxID) == nil {
		last--
	}
	if last < 0 {
		d.start(&inits[0])
		return false
	}
	for i := range inits[:last] {
		if podset.IsSidecar(&inits[i]) {
			d.keepUp(&inits[i])
		}
	}
	if !d.initDone(&inits[last]) {
		return false
	}
	if last+1 < len(inits) {
		d.start(&inits[last+1])
		return false
	}
	return true
}

// initDone advances the furthest init container, and reports whether the next may start.
func (d *decision) initDone(c *v1.Container) bool {
	if podset.IsSidecar(c) {
		return d.keepUp(c)
	}
	latest := podview.LatestIn(d.status, c.Name, d.SandboxID)
	switch latest.GetState() {
	case lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING:
		d.resize(c, latest)
		return false
	case lifecyclev1.ContainerState_CONTAINER_STATE_EXITED:
		if latest.GetExitCode() == 0 {
			return true
		}
		if !d.restarts(c, latest) {
			d.over()
			return false
		}
		d.start(c)
	case lifecyclev1.ContainerState_CONTAINER_STATE_CREATED:
		d.start(c) // it was never started, so the restart policy does not apply
	case lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN, lifecyclev1.ContainerState_CONTAINER_STATE_UNSPECIFIED:
		d.kill(latest, StateUnknown, fmt.Sprintf("Init container %s is in an unknown state, killing it", c.Name))
	}
	return false
}

// keepUp keeps a sidecar running, and reports whether it has started.
func (d *decision) keepUp(c *v1.Container) bool {
	latest := podview.LatestIn(d.status, c.Name, d.SandboxID)
	switch {
	case latest == nil, podview.Exited(latest), latest.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_CREATED:
		d.start(c)
		return false
	case !podview.Running(latest):
		d.kill(latest, StateUnknown, fmt.Sprintf("Init container %s is in an unknown state, killing it", c.Name))
		return false
	}
	started := c.StartupProbe == nil || d.facts.Startup == nil || d.facts.Startup(latest.GetId()) == Success
	d.keepRunning(c, latest)
	return started
}

// ordinaryContainers keeps, kills and starts the ordinary containers, and ends the pod if none is left to run.
func (d *decision) ordinaryContainers() {
	kept, wanted := 0, 0
	for i := range d.pod.Spec.Containers {
		c := &d.pod.Spec.Containers[i]
		latest := podview.Latest(d.status, c.Name)
		switch {
		case latest == nil:
			d.start(c)
			wanted++
		case podview.Alive(latest) && latest.GetSandboxId() != d.SandboxID:
			if d.restarts(c, latest) { // killUnwanted kills it
				d.start(c)
				wanted++
			}
		case podview.Running(latest):
			d.keepRunning(c, latest)
			kept++
		case podview.Exited(latest):
			if d.restarts(c, latest) {
				d.start(c)
				wanted++
			}
		case podview.Alive(latest): // the runtime does not know whether it runs
			d.kill(latest, StateUnknown, fmt.Sprintf("Container %s is in an unknown state, killing it", c.Name))
			kept++
		default: // created and never started
			d.start(c)
			wanted++
		}
	}
	if kept == 0 && (wanted == 0 || d.pod.DeletionTimestamp != nil) {
		d.over()
	}
}

// keepRunning keeps a running container, or kills it and starts its successor in the same step. For a changed container
// the restart policy does not apply, because it has not completed. One that was killed because of a probe is restarted
// after its back-off.
func (d *decision) keepRunning(c *v1.Container, running *lifecyclev1.Container) {
	switch {
	case podlabels.Changed(c, running.GetAnnotations()):
		d.kill(running, SpecChanged, fmt.Sprintf("Container %s definition changed, will be restarted", c.Name))
		d.start(c)
	case d.livenessFailed(c, running):
		d.killByProbe(c, running, LivenessFailed, "liveness")
	case d.startupFailed(c, running):
		d.killByProbe(c, running, StartupFailed, "startup")
	default:
		d.resize(c, running)
	}
}

func (d *decision) killByProbe(c *v1.Container, running *lifecyclev1.Container, why Why, probe string) {
	message := fmt.Sprintf("Container %s failed %s probe", c.Name, probe)
	// The container's rules do not apply here, because its exit code is unknown.
	if policyOf(d.pod, c) != v1.RestartPolicyNever {
		message += ", will be restarted"
		d.startWhenDue(d.restartOfKilled(c, running))
	}
	d.kill(running, why, message)
}

// over ends the pod: nothing is started any more, and the rest is stopped.
func (d *decision) over() {
	d.StopAll = podview.AnyAlive(d.status)
	d.Start, d.Wait, d.Kill, d.StopSandboxes = nil, nil, nil, nil
	d.Resize = resize.Plan{}
}
