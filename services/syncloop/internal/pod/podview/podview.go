// Package podview reads what pleg observed of a pod: which container of a name is the latest, which sandbox is in use.
// The deciding and the reporting parts of syncloop share it, so that both see the same pod. It is pure.
package podview

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// Latest returns the newest container with a name, or nil. Containers come newest first.
func Latest(status *lifecyclev1.PodStatus, name string) *lifecyclev1.Container {
	for _, c := range status.GetContainers() {
		if c.GetName() == name {
			return c
		}
	}
	return nil
}

// LatestIn returns the newest container with a name in one sandbox, or nil.
func LatestIn(status *lifecyclev1.PodStatus, name, sandboxID string) *lifecyclev1.Container {
	for _, c := range status.GetContainers() {
		if c.GetName() == name && c.GetSandboxId() == sandboxID {
			return c
		}
	}
	return nil
}

// LatestExited returns the newest container with a name that has ended, or nil.
func LatestExited(status *lifecyclev1.PodStatus, name string) *lifecyclev1.Container {
	for _, c := range status.GetContainers() {
		if c.GetName() == name && Exited(c) {
			return c
		}
	}
	return nil
}

// Running says whether a container runs. A nil container does not.
func Running(c *lifecyclev1.Container) bool {
	return c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
}

// Exited says whether a container has ended. A nil container has not.
func Exited(c *lifecyclev1.Container) bool {
	return c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
}

// Alive says whether a container may have processes: it runs, or the runtime cannot tell.
func Alive(c *lifecyclev1.Container) bool {
	return Running(c) || c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN
}

// Ready says whether a sandbox can be used. A nil sandbox cannot.
func Ready(s *lifecyclev1.Sandbox) bool {
	return s.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY
}

// AnyAlive says whether anything of the pod may still have processes or namespaces: a container that may run, or a
// sandbox that is ready.
func AnyAlive(status *lifecyclev1.PodStatus) bool {
	for _, c := range status.GetContainers() {
		if Alive(c) {
			return true
		}
	}
	for _, s := range status.GetSandboxes() {
		if Ready(s) {
			return true
		}
	}
	return false
}

// Sandbox returns the sandbox that the pod uses: the newest ready one with a running container in it, else the newest
// ready one, else nil. Two are ready only when a process was killed between making one and noticing it.
func Sandbox(status *lifecyclev1.PodStatus) *lifecyclev1.Sandbox {
	var first *lifecyclev1.Sandbox
	for _, s := range status.GetSandboxes() {
		if !Ready(s) {
			continue
		}
		if first == nil {
			first = s
		}
		for _, c := range status.GetContainers() {
			if c.GetSandboxId() == s.GetId() && Running(c) {
				return s
			}
		}
	}
	return first
}

// Time is the moment of a timestamp; the zero time when it is unset.
func Time(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
