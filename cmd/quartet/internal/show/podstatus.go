package show

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
)

// summary is what a line about a pod says of its containers.
type summary struct {
	// status is one word, as kubectl's: "Running", "Init:0/1", "CrashLoopBackOff".
	status string
	// ready of total containers are ready; sidecars count.
	ready, total int
	restarts     int
	// lastRestart is when a container last ended that was started again; zero when none was.
	lastRestart time.Time
	// unknownSince is when the runtime ceased to answer for the pod, so that all the rest is of before; zero while it does.
	unknownSince time.Time
}

// statusUnknown is the status of a pod for which the runtime does not answer.
const statusUnknown = string(v1.PodUnknown)

// unknownState returns the condition that says that the runtime does not answer for a pod; nil when it does.
func unknownState(pod *v1.Pod) *v1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if c.Type == podset.ConditionRuntimeStateUnknown && c.Status == v1.ConditionTrue {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// summarize makes the summary of a pod. Terminating is true when it is being stopped: a static pod has no deletion
// timestamp that would say so.
func summarize(pod *v1.Pod, terminating bool) summary {
	s := summary{status: string(pod.Status.Phase), total: len(pod.Spec.Containers)}
	if s.status == "" {
		s.status = string(v1.PodPending)
	}
	if pod.Status.Reason != "" {
		s.status = pod.Status.Reason
	}
	sidecars := sidecarNames(pod)
	s.total += len(sidecars)
	initializing := s.addInit(pod, sidecars)
	if !initializing || hasCondition(pod, v1.PodInitialized) {
		s.addContainers(pod, sidecars)
	}
	ended := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
	if (terminating || pod.DeletionTimestamp != nil) && !ended {
		s.status = "Terminating"
	}
	if c := unknownState(pod); c != nil && !ended {
		s.status, s.unknownSince = statusUnknown, c.LastTransitionTime.Time
	}
	return s
}

// sidecarNames are the init containers that are restarted for as long as the pod lives.
func sidecarNames(pod *v1.Pod) map[string]bool {
	names := make(map[string]bool)
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podset.IsSidecar(c) {
			names[c.Name] = true
		}
	}
	return names
}

// addInit looks at the init containers in their order, up to the first that is not finished. It returns whether there
// is one.
func (s *summary) addInit(pod *v1.Pod, sidecars map[string]bool) bool {
	for i, c := range pod.Status.InitContainerStatuses {
		s.addRestarts(c)
		sidecar := sidecars[c.Name]
		if sidecar && c.Ready && c.State.Running != nil {
			s.ready++
		}
		ended, waiting := c.State.Terminated, c.State.Waiting
		switch {
		case ended != nil && ended.ExitCode == 0:
			continue
		case sidecar && c.Started != nil && *c.Started:
			continue
		case ended != nil:
			s.status = "Init:" + endOf(ended)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.status = "Init:" + waiting.Reason
		default:
			s.status = fmt.Sprintf("Init:%d/%d", i, len(pod.Spec.InitContainers))
		}
		return true
	}
	return false
}

// addContainers looks at the containers proper: the first that does not run gives its reason.
func (s *summary) addContainers(pod *v1.Pod, sidecars map[string]bool) {
	running := false
	// The restarts of init containers that have finished say nothing any more; those of sidecars do.
	s.restarts, s.lastRestart = 0, time.Time{}
	for _, c := range pod.Status.InitContainerStatuses {
		if sidecars[c.Name] {
			s.addRestarts(c)
		}
	}
	for i := len(pod.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := pod.Status.ContainerStatuses[i]
		s.addRestarts(c)
		ended, waiting := c.State.Terminated, c.State.Waiting
		switch {
		case waiting != nil && waiting.Reason != "":
			s.status = waiting.Reason
		case ended != nil:
			s.status = endOf(ended)
		case c.State.Running != nil:
			running = running || c.Ready
		default:
		}
		if c.Ready && c.State.Running != nil {
			s.ready++
		}
	}
	if s.status == "Completed" && running {
		s.status = "NotReady"
		if hasCondition(pod, v1.PodReady) {
			s.status = "Running"
		}
	}
}

func (s *summary) addRestarts(c v1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if last := c.LastTerminationState.Terminated; last != nil && last.FinishedAt.Time.After(s.lastRestart) {
		s.lastRestart = last.FinishedAt.Time
	}
}

// endOf is why a container ended, in one word.
func endOf(ended *v1.ContainerStateTerminated) string {
	switch {
	case ended.Reason != "":
		return ended.Reason
	case ended.Signal != 0:
		return fmt.Sprintf("Signal:%d", ended.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", ended.ExitCode)
	}
}

func hasCondition(pod *v1.Pod, kind v1.PodConditionType) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}
