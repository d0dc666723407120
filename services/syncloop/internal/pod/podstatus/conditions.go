package podstatus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// The kubelet's reasons of conditions.
const (
	reasonSandboxNotReady          = "PodSandboxNotReady"
	reasonContainersNotInitialized = "ContainersNotInitialized"
	reasonContainersNotReady       = "ContainersNotReady"
	reasonReadinessGatesNotReady   = "ReadinessGatesNotReady"
	reasonAllRestart               = "RestartAllContainersStarted"
	reasonPodCompleted             = "PodCompleted"
	reasonPodFailed                = "PodFailed"
)

// reasonNotInspected is the reason of podset.ConditionRuntimeStateUnknown, which the kubelet does not have.
const reasonNotInspected = "InspectionFailed"

// owned are the conditions that are computed here; others (readiness gates, DisruptionTarget) are kept unchanged.
var owned = []v1.PodConditionType{
	v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled,
	v1.AllContainersRestarting,
	v1.PodResizePending, v1.PodResizeInProgress,
}

// Owns reports whether only this node sets a condition of its pods. DisruptionTarget may be set by others too.
func Owns(c *v1.PodCondition) bool {
	if c.Type == v1.DisruptionTarget {
		return c.Reason == v1.PodReasonTerminationByKubelet
	}
	return slices.Contains(owned, c.Type) || c.Type == podset.ConditionRuntimeStateUnknown
}

// conditions computes the conditions, after those of others.
func (g *generation) conditions(out v1.PodStatus) []v1.PodCondition {
	var conditions []v1.PodCondition
	for _, c := range g.pod.Status.Conditions {
		if !slices.Contains(owned, c.Type) && c.Type != v1.DisruptionTarget && c.Type != podset.ConditionRuntimeStateUnknown {
			conditions = append(conditions, c)
		}
	}
	for _, from := range [][]v1.PodCondition{g.in.Previous.Conditions, g.pod.Status.Conditions} {
		if c := find(from, v1.DisruptionTarget); c != nil {
			conditions = append(conditions, *c)
			break
		}
	}
	containersReady := g.containersReady(out)
	own := []v1.PodCondition{
		g.readyToStart(), g.initialized(out), g.ready(containersReady), containersReady,
		{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
	if decide.MayBeginAgain(g.pod) {
		own = append(own, g.beginsAgain())
	}
	for _, c := range own {
		c.ObservedGeneration = g.observedGeneration()
		c.LastTransitionTime = g.transition(c, out)
		conditions = append(conditions, c)
	}
	conditions = append(conditions, g.resizes()...)
	return append(conditions, g.unknown()...)
}

// observedGeneration returns the generation that the status is about. A new pod has no earlier one.
func (g *generation) observedGeneration() int64 {
	if before := g.in.Previous.ObservedGeneration; g.in.Undecided && before != 0 {
		return before
	}
	return g.pod.Generation
}

// resizes returns the conditions of a resize; none for a pod that has ended. Their generation is the one that asked for
// the resize, and their last transition is that of the reason.
func (g *generation) resizes() []v1.PodCondition {
	if g.in.Terminal {
		return nil
	}
	var out []v1.PodCondition
	add := func(kind v1.PodConditionType, c *resize.Condition) {
		if c != nil {
			out = append(out, v1.PodCondition{
				Type: kind, Status: v1.ConditionTrue, Reason: c.Reason, Message: c.Message, ObservedGeneration: c.Generation,
				LastTransitionTime: metav1.NewTime(c.Since),
			})
		}
	}
	add(v1.PodResizePending, g.in.Resize.Conditions.Pending)
	add(v1.PodResizeInProgress, g.in.Resize.Conditions.InProgress)
	return out
}

// unknown returns the condition of a pod that pleg cannot inspect; none if it can. The rest of the status stays
// unchanged, as in the kubelet, so that a serving pod is not removed from its services because the runtime is slow.
func (g *generation) unknown() []v1.PodCondition {
	reason := g.status.GetInspectError()
	if reason == "" {
		return nil
	}
	since := podview.Time(g.status.GetUnknownSince())
	if since.IsZero() {
		since = g.in.Now
	}
	// A restarted pleg does not know the original start of that state.
	if before := find(g.in.Previous.Conditions, podset.ConditionRuntimeStateUnknown); before != nil &&
		before.LastTransitionTime.Time.Before(since) {
		since = before.LastTransitionTime.Time
	}
	return []v1.PodCondition{{
		Type: podset.ConditionRuntimeStateUnknown, Status: v1.ConditionTrue, Reason: reasonNotInspected, Message: reason,
		ObservedGeneration: g.observedGeneration(), LastTransitionTime: metav1.NewTime(since),
	}}
}

func (g *generation) readyToStart() v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: v1.ConditionTrue}
	if change := decide.SandboxChange(g.pod, g.status); change != "" {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, reasonSandboxNotReady, change
	}
	return c
}

// beginsAgain returns the condition of a pod with a rule that restarts all its containers.
func (g *generation) beginsAgain() v1.PodCondition {
	c := v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	if decide.BeginsAgain(g.pod, g.status) {
		c.Status, c.Reason, c.Message = v1.ConditionTrue, reasonAllRestart, "container exited with restart policy rule"
	}
	return c
}

func (g *generation) initialized(out v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if out.Phase == v1.PodSucceeded {
		c.Reason = reasonPodCompleted
		return c
	}
	var incomplete []string
	for i, status := range out.InitContainerStatuses {
		done := status.Ready
		if podset.IsSidecar(&g.pod.Spec.InitContainers[i]) {
			done = status.Started != nil && *status.Started
		}
		if !done {
			incomplete = append(incomplete, status.Name)
		}
	}
	begun := slices.ContainsFunc(out.ContainerStatuses, func(s v1.ContainerStatus) bool {
		return s.State.Running != nil || lastEnd(s) != nil
	})
	if len(incomplete) > 0 && !begun {
		c.Status, c.Reason = v1.ConditionFalse, reasonContainersNotInitialized
		c.Message = fmt.Sprintf("containers with incomplete status: %s", incomplete)
	}
	return c
}

func (g *generation) containersReady(out v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.ContainersReady, Status: v1.ConditionFalse}
	switch out.Phase {
	case v1.PodSucceeded:
		c.Reason = reasonPodCompleted
		return c
	case v1.PodFailed:
		c.Reason = reasonPodFailed
		return c
	case v1.PodPending, v1.PodRunning, v1.PodUnknown:
	}
	var unready []string
	for i, status := range out.InitContainerStatuses {
		if podset.IsSidecar(&g.pod.Spec.InitContainers[i]) && !status.Ready {
			unready = append(unready, status.Name)
		}
	}
	for i := range g.pod.Spec.Containers { // in the order of the spec
		for _, status := range out.ContainerStatuses {
			if status.Name == g.pod.Spec.Containers[i].Name && !status.Ready {
				unready = append(unready, status.Name)
			}
		}
	}
	if len(unready) > 0 {
		c.Reason, c.Message = reasonContainersNotReady, fmt.Sprintf("containers with unready status: %s", unready)
		return c
	}
	c.Status = v1.ConditionTrue
	return c
}

// ready combines ContainersReady and all readiness gates.
func (g *generation) ready(containers v1.PodCondition) v1.PodCondition {
	c := containers
	c.Type = v1.PodReady
	if c.Status != v1.ConditionTrue {
		return c
	}
	var unmet []string
	for _, gate := range g.pod.Spec.ReadinessGates {
		switch got := find(g.pod.Status.Conditions, gate.ConditionType); {
		case got == nil:
			unmet = append(unmet, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case got.Status != v1.ConditionTrue:
			unmet = append(unmet,
				fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, got.Status))
		}
	}
	if len(unmet) > 0 {
		c.Status, c.Reason, c.Message = v1.ConditionFalse, reasonReadinessGatesNotReady, strings.Join(unmet, ", ")
	}
	return c
}

func find(conditions []v1.PodCondition, kind v1.PodConditionType) *v1.PodCondition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

// transition returns the transition time of a condition: unchanged while its status stays, and now if it changes. If
// the previous status is unknown because this process has just started, a condition that is True gets the time in the
// runtime's records, so that a restart of the agent is no transition.
func (g *generation) transition(c v1.PodCondition, out v1.PodStatus) metav1.Time {
	for _, from := range [][]v1.PodCondition{g.in.Previous.Conditions, g.pod.Status.Conditions} {
		if before := find(from, c.Type); before != nil {
			if before.Status == c.Status {
				return before.LastTransitionTime
			}
			return metav1.NewTime(g.in.Now)
		}
	}
	if c.Status == v1.ConditionTrue {
		if at := g.since(c.Type, out); !at.IsZero() && at.Before(g.in.Now) {
			return metav1.NewTime(at)
		}
	}
	return metav1.NewTime(g.in.Now)
}

// since returns when a condition became True according to the runtime's records; zero if unknown.
func (g *generation) since(kind v1.PodConditionType, out v1.PodStatus) time.Time {
	var at time.Time
	later := func(t time.Time) {
		if t.After(at) {
			at = t
		}
	}
	switch kind {
	case v1.PodScheduled:
		later(out.StartTime.Time)
	case v1.PodReadyToStartContainers:
		later(podview.Time(podview.Sandbox(g.status).GetCreatedAt()))
	case v1.PodInitialized:
		later(out.StartTime.Time)
		for _, s := range out.InitContainerStatuses {
			if s.State.Terminated != nil {
				later(s.State.Terminated.FinishedAt.Time)
			}
		}
	case v1.DisruptionTarget, v1.PodResizePending, v1.PodResizeInProgress, v1.AllContainersRestarting: // not computed here
	case v1.PodReady, v1.ContainersReady:
		for _, s := range slices.Concat(out.InitContainerStatuses, out.ContainerStatuses) {
			if s.State.Running == nil {
				continue
			}
			later(s.State.Running.StartedAt.Time)
			if g.in.ProbedSince != nil {
				later(g.in.ProbedSince(podview.Latest(g.status, s.Name).GetId()))
			}
		}
	}
	return at
}
