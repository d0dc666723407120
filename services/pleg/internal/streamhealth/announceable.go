package streamhealth

import (
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

// Announceable tells whether a pod has changed, from one inspection (nil when it was not there) to a later one, in a
// way that a runtime tells by an event: a sandbox or container was made, started, stopped or removed. What none tells,
// or containerd does not, is no reason to doubt its events:
//   - a container that could not be started has ended without ever having run;
//   - the runtime has lost sight of a container, or has found it again;
//   - a sandbox that could not be set up is left over, not ready from the beginning;
//   - addresses, annotations and the like.
func Announceable(before, after *lifecyclev1.PodStatus) bool {
	for _, s := range before.GetSandboxes() {
		if now := record.FindSandbox(after, s.GetId()); now == nil || now.GetState() != s.GetState() {
			return true
		}
	}
	for _, s := range after.GetSandboxes() {
		if s.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY && record.FindSandbox(before, s.GetId()) == nil {
			return true
		}
	}
	for _, c := range before.GetContainers() {
		if record.FindContainer(after, c.GetId()) == nil {
			return true
		}
	}
	for _, c := range after.GetContainers() {
		if known := record.FindContainer(before, c.GetId()); known == nil || moved(known, c) {
			return true
		}
	}
	return false
}

// moved tells whether a container has been started or stopped.
func moved(before, after *lifecyclev1.Container) bool {
	const unknown, exited = lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN, lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
	switch {
	case before.GetState() == after.GetState(), before.GetState() == unknown, after.GetState() == unknown:
		return false
	case after.GetState() == exited && after.GetStartedAt() == nil:
		return false
	}
	return true
}
