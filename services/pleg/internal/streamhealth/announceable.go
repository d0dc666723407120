package streamhealth

import (
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
)

// Announceable reports whether a pod has changed between two inspections, the first of which is nil for a new pod, in a
// way that a runtime announces with an event: a sandbox or container was created, started, stopped or removed. Changes
// without an event, in general or of containerd, do not count:
//   - a container that failed to start has ended without having run;
//   - the runtime has lost a container, or has found it again;
//   - a sandbox that failed to be set up remains, and was never ready;
//   - addresses, annotations and the like.
func Announceable(before, after *lifecyclev1.PodStatus) bool {
	for _, s := range before.GetSandboxes() {
		if now := inspection.FindSandbox(after, s.GetId()); now == nil || now.GetState() != s.GetState() {
			return true
		}
	}
	for _, s := range after.GetSandboxes() {
		if s.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY && inspection.FindSandbox(before, s.GetId()) == nil {
			return true
		}
	}
	for _, c := range before.GetContainers() {
		if inspection.FindContainer(after, c.GetId()) == nil {
			return true
		}
	}
	for _, c := range after.GetContainers() {
		if known := inspection.FindContainer(before, c.GetId()); known == nil || moved(known, c) {
			return true
		}
	}
	return false
}

// moved reports whether a container was started or stopped.
func moved(before, after *lifecyclev1.Container) bool {
	const unknown, exited = lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN,
		lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
	switch {
	case before.GetState() == after.GetState(), before.GetState() == unknown, after.GetState() == unknown:
		return false
	case after.GetState() == exited && after.GetStartedAt() == nil:
		return false
	}
	return true
}
