package show

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
)

// summary summarizes the containers of a pod in a row.
type summary struct {
	// status is one word, as in kubectl: "Running", "Init:0/1", "CrashLoopBackOff".
	status string
	// ready of total containers are ready, including sidecars.
	ready, total int
	restarts     int
	// lastRestart is the last end of a restarted container; zero if there is none.
	lastRestart time.Time
	// unknownSince is when the runtime stopped answering for the pod, so that the rest is the last known state; zero while
	// it answers.
	unknownSince time.Time
}

// statusUnknown is the status of a pod for which the runtime does not answer.
const statusUnknown = string(v1.PodUnknown)

// unknownState returns the condition of a pod for which the runtime does not answer; nil if it answers.
func unknownState(pod *v1.Pod) *v1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if c.Type == podset.ConditionRuntimeStateUnknown && c.Status == v1.ConditionTrue {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// summarize returns the summary of a pod. terminating is needed because a static pod has no deletion timestamp.
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

// sidecarNames returns the names of the sidecars.
func sidecarNames(pod *v1.Pod) map[string]bool {
	names := make(map[string]bool)
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podset.IsSidecar(c) {
			names[c.Name] = true
		}
	}
	return names
}

// addInit summarizes the init containers up to the first unfinished one. It reports whether there is one.
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

// addContainers summarizes the main containers: the first one that does not run determines the status.
func (s *summary) addContainers(pod *v1.Pod, sidecars map[string]bool) {
	running := false
	// The restarts of finished init containers are irrelevant; those of sidecars are not.
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

// endOf returns why a container ended in one word.
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
