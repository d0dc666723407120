package decide

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// The causes of starts, as the log and the event of a start say them. One may have several, put together with commas; how the
// container before it has ended comes last: "spec changed, exited with 1 (Error)".
const (
	// CauseFirst is the first container of its name.
	CauseFirst = "first start"
	// CauseLost is a container of which the runtime has no record any more, though its log is there: it was removed by
	// somebody else, or the runtime has lost it.
	CauseLost = "the runtime has no record of the one before"
	// CauseNeverStarted is a container that was created, and whose start failed or was cut short.
	CauseNeverStarted = "created and never started"
	// CauseSpecChanged is a container whose spec has changed in what needs a restart.
	CauseSpecChanged = "spec changed"
	// CauseResized is a container that has to be made again to have other resources.
	CauseResized = "resources changed"
	// CauseLiveness and CauseStartup are containers that a probe has had killed.
	CauseLiveness = "liveness probe failed"
	CauseStartup  = "startup probe failed"
	// CauseUnknown is a container of which the runtime could not say whether it runs.
	CauseUnknown = "state unknown"
	// CauseAll is a container of a pod that begins again; which container's end asked for that follows in brackets where
	// it is known.
	CauseAll = "a rule restarts all containers"
	// CauseSandbox is a container whose pod needed another sandbox; why follows in brackets.
	CauseSandbox = "sandbox replaced"
)

// causeOf says why a container is started. Lost is true when its logs tell of a later one than the runtime has.
func (d *decision) causeOf(c *v1.Container, lost bool) string {
	latest := podview.Latest(d.status, c.Name)
	var causes []string
	if len(d.asked) > 0 {
		causes = append(causes, fmt.Sprintf("%s (%s)", CauseAll, strings.Join(d.asked, ", ")))
	}
	switch {
	case latest == nil && !lost:
		return CauseFirst
	case latest == nil && len(causes) == 0 && d.goesOnAgain():
		return CauseAll
	case lost:
		return strings.Join(append(causes, CauseLost), ", ")
	}
	if latest.GetSandboxId() != d.SandboxID {
		causes = append(causes, d.sandboxReplaced())
	}
	if podlabels.Changed(c, latest.GetAnnotations()) {
		causes = append(causes, CauseSpecChanged)
	}
	if d.madeAgain(c, latest) {
		causes = append(causes, CauseResized)
	}
	if d.livenessFailed(c, latest) {
		causes = append(causes, CauseLiveness)
	}
	if d.startupFailed(c, latest) {
		causes = append(causes, CauseStartup)
	}
	if end := endOf(latest); end != "" {
		causes = append(causes, end)
	}
	return strings.Join(causes, ", ")
}

// sandboxReplaced says why the pod is not in the sandbox any more that a container was in: what is decided now, or what was
// when the present sandbox was made.
func (d *decision) sandboxReplaced() string {
	why := d.SandboxReason
	if !d.CreateSandbox {
		why = podview.Sandbox(d.status).GetAnnotations()[podlabels.StartCause]
	}
	if why == "" {
		return CauseSandbox
	}
	return fmt.Sprintf("%s (%s)", CauseSandbox, why)
}

// goesOnAgain says whether the pod has begun again in its sandbox and has not come to its ordinary containers since: their
// records were removed for that.
func (d *decision) goesOnAgain() bool {
	return !Initialized(d.pod, d.status) && slices.ContainsFunc(d.status.GetContainers(), func(c *lifecyclev1.Container) bool {
		return c.GetSandboxId() == d.SandboxID && strings.HasPrefix(podlabels.RestartOf(c.GetAnnotations(), 0).Cause, CauseAll)
	})
}

// endOf says how a container has ended, or what else is to be said of its state; nothing of one that runs.
func endOf(c *lifecyclev1.Container) string {
	switch c.GetState() {
	case lifecyclev1.ContainerState_CONTAINER_STATE_EXITED:
		if c.GetReason() == "" {
			return fmt.Sprintf("exited with %d", c.GetExitCode())
		}
		return fmt.Sprintf("exited with %d (%s)", c.GetExitCode(), c.GetReason())
	case lifecyclev1.ContainerState_CONTAINER_STATE_CREATED:
		return CauseNeverStarted
	case lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN, lifecyclev1.ContainerState_CONTAINER_STATE_UNSPECIFIED:
		return CauseUnknown
	case lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING:
	}
	return ""
}
