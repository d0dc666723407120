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

// The causes of starts in the log and the event of a start. Several are joined with commas; the end of the previous
// container comes last: "spec changed, exited with 1 (Error)".
const (
	// CauseFirst is the first container of its name.
	CauseFirst = "first start"
	// CauseLost is the cause for a container without a record in the runtime although its log exists: it was removed by
	// another program, or the runtime has lost it.
	CauseLost = "the runtime has no record of the one before"
	// CauseNeverStarted is the cause for a created container whose start failed or was interrupted.
	CauseNeverStarted = "created and never started"
	// CauseSpecChanged is the cause for a container whose spec has changed in a field that requires a restart.
	CauseSpecChanged = "spec changed"
	// CauseResized is the cause for a container that is recreated to change its resources.
	CauseResized = "resources changed"
	// CauseLiveness and CauseStartup are the causes for a container that was killed because of a probe.
	CauseLiveness = "liveness probe failed"
	CauseStartup  = "startup probe failed"
	// CauseUnknown is the cause for a container whose state the runtime did not know.
	CauseUnknown = "state unknown"
	// CauseAll is the cause for a restart of all containers; the container that required it follows in parentheses if it
	// is known.
	CauseAll = "a rule restarts all containers"
	// CauseSandbox is the cause for a container whose pod needed another sandbox; the reason follows in parentheses.
	CauseSandbox = "sandbox replaced"
	// CauseLife is the cause for a container of a pod that came back while it ended.
	CauseLife = "the pod came back"
)

// causeOf returns why a container is started. lost is true if its logs show a later container than the runtime's
// records.
func (d *decision) causeOf(c *v1.Container, lost bool) string {
	latest := podview.Latest(d.status, c.Name)
	var causes []string
	if len(d.restartAllEnds) > 0 {
		causes = append(causes, fmt.Sprintf("%s (%s)", CauseAll, strings.Join(d.restartAllEnds, ", ")))
	}
	switch {
	case latest == nil && !lost:
		return CauseFirst
	case latest == nil && len(causes) == 0 && goesOnAgain(d.pod, d.status, d.SandboxID):
		return CauseAll
	case lost:
		return strings.Join(append(causes, CauseLost), ", ")
	}
	comesBack := d.comesBack(latest)
	switch {
	case comesBack:
		causes = append(causes, CauseLife)
	case latest.GetSandboxId() != d.SandboxID:
		causes = append(causes, d.sandboxReplaced())
	}
	if podlabels.Changed(c, latest.GetAnnotations()) {
		causes = append(causes, CauseSpecChanged)
	}
	if !comesBack && d.madeAgain(c, latest) {
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

// comesBack reports whether a container has ended with an earlier life of the pod. One that was killed to get other
// resources is replaced in its own sandbox.
func (d *decision) comesBack(latest *lifecyclev1.Container) bool {
	return d.replaced(latest) && latest.GetSandboxId() != d.SandboxID
}

// sandboxReplaced returns why the pod has left the sandbox of a container: the present decision, or the reason recorded
// on the present sandbox.
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

// GoesOnAgain reports whether all containers of a pod were restarted in its sandbox and its ordinary containers have
// not been reached since, so that their records were removed.
func GoesOnAgain(pod *v1.Pod, status *lifecyclev1.PodStatus) bool {
	return goesOnAgain(pod, status, podview.Sandbox(status).GetId())
}

func goesOnAgain(pod *v1.Pod, status *lifecyclev1.PodStatus, sandbox string) bool {
	return !Initialized(pod, status) &&
		slices.ContainsFunc(status.GetContainers(), func(c *lifecyclev1.Container) bool {
			return c.GetSandboxId() == sandbox &&
				strings.HasPrefix(podlabels.RestartOf(c.GetAnnotations(), 0).Cause, CauseAll)
		})
}

// endOf returns how a container has ended, or another remark about its state; empty for a running one.
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
