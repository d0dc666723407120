// Package podview reads pleg's status of a pod: the latest container of a name, the sandbox in use. The packages that
// decide and those that report share it, so that both agree. It is pure.
package podview

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// Latest returns the newest container of a name, or nil. Containers are sorted newest first.
func Latest(status *lifecyclev1.PodStatus, name string) *lifecyclev1.Container {
	for _, c := range status.GetContainers() {
		if c.GetName() == name {
			return c
		}
	}
	return nil
}

// LatestIn returns the newest container of a name in one sandbox, or nil.
func LatestIn(status *lifecyclev1.PodStatus, name, sandboxID string) *lifecyclev1.Container {
	for _, c := range status.GetContainers() {
		if c.GetName() == name && c.GetSandboxId() == sandboxID {
			return c
		}
	}
	return nil
}

// LatestExited returns the newest ended container of a name, or nil.
func LatestExited(status *lifecyclev1.PodStatus, name string) *lifecyclev1.Container {
	for _, c := range status.GetContainers() {
		if c.GetName() == name && Exited(c) {
			return c
		}
	}
	return nil
}

// Running reports whether a container runs; false for nil.
func Running(c *lifecyclev1.Container) bool {
	return c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
}

// Exited reports whether a container has ended; false for nil.
func Exited(c *lifecyclev1.Container) bool {
	return c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
}

// Alive reports whether a container may have processes: it runs, or its state is unknown.
func Alive(c *lifecyclev1.Container) bool {
	return Running(c) || c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN
}

// Ready reports whether a sandbox is usable; false for nil.
func Ready(s *lifecyclev1.Sandbox) bool {
	return s.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY
}

// AnyAlive reports whether anything of the pod may have processes or namespaces: a container that may run, or a ready
// sandbox.
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

// Sandbox returns the sandbox in use: the newest ready one with a running container, or else the newest ready one, or
// else nil. Two are ready only if a process was killed between creating one and observing it.
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

// Time converts a timestamp; zero if it is unset.
func Time(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// SameContent reports whether two observations of a pod differ only in the time at which they were made. A nil
// observation is that of a pod of which the runtime has nothing.
func SameContent(a, b *lifecyclev1.PodStatus) bool {
	if len(a.GetContainers()) != len(b.GetContainers()) || len(a.GetSandboxes()) != len(b.GetSandboxes()) {
		return false
	}
	return proto.Equal(contentOf(a), contentOf(b))
}

// contentOf returns a copy without the identity of the pod and the times; the copy shares its parts.
func contentOf(s *lifecyclev1.PodStatus) *lifecyclev1.PodStatus {
	return &lifecyclev1.PodStatus{
		Ips: s.GetIps(), Sandboxes: s.GetSandboxes(), Containers: s.GetContainers(), InspectError: s.GetInspectError(),
		UnknownSince: s.GetUnknownSince(),
	}
}
