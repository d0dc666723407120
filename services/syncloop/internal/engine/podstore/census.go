package podstore

import (
	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// Census counts the pods and the contents of the runtime at this moment.
func (s *Store) Census() Census {
	s.mu.Lock()
	defer s.mu.Unlock()
	census := Census{
		Desired: map[bool]int{}, Active: map[bool]int{}, Working: map[Working]int{}, Containers: map[string]int{},
	}
	for _, e := range s.entries {
		census.Working[e.working()]++
		if !e.desired {
			continue
		}
		static := podset.IsStaticSource(e.source)
		census.Desired[static]++
		if e.isActive() {
			census.Active[static]++
			census.Waiting = append(census.Waiting, e.waiting()...)
		}
	}
	for _, observed := range s.observed {
		for _, sandbox := range observed.GetSandboxes() {
			if sandbox.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY {
				census.RunningPods++
				break
			}
		}
		for _, c := range observed.GetContainers() {
			census.Containers[containerState(c.GetState())]++
		}
	}
	return census
}

// isActive reports whether a pod has neither ended nor been terminated.
func (e *entry) isActive() bool {
	return e.state < podworkers.Terminated && e.status.Phase != v1.PodSucceeded && e.status.Phase != v1.PodFailed
}

func (e *entry) working() Working {
	w := Working{Static: podset.IsStaticSource(e.source)}
	switch e.state {
	case podworkers.Syncing:
		w.Lifecycle = lifecycleSync
	case podworkers.Terminating:
		w.Lifecycle = lifecycleTerminating
	case podworkers.Terminated, podworkers.Gone:
		w.Lifecycle = lifecycleTerminated
	}
	switch {
	case e.desired:
		w.Config = configDesired
	case e.source != "":
		w.Config = configOrphan
	default:
		w.Config, w.Static = configRuntimeOnly, false
	}
	return w
}

// waiting lists the waiting containers of a pod.
func (e *entry) waiting() []WaitingContainer {
	var list []WaitingContainer
	for _, statuses := range [][]v1.ContainerStatus{e.status.InitContainerStatuses, e.status.ContainerStatuses} {
		for _, c := range statuses {
			if c.State.Waiting != nil {
				list = append(list, WaitingContainer{
					Namespace: e.pod.Namespace, Pod: e.pod.Name, Container: c.Name, Reason: c.State.Waiting.Reason,
				})
			}
		}
	}
	return list
}

// containerState returns the kubelet's word for the state of a container.
func containerState(state lifecyclev1.ContainerState) string {
	switch state {
	case lifecyclev1.ContainerState_CONTAINER_STATE_CREATED:
		return "created"
	case lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING:
		return "running"
	case lifecyclev1.ContainerState_CONTAINER_STATE_EXITED:
		return "exited"
	case lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN, lifecyclev1.ContainerState_CONTAINER_STATE_UNSPECIFIED:
	}
	return "unknown"
}
