package podstore

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	seen "github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// compute makes the status of a pod anew, and publishes the pod when that has changed, or when anything else has that
// the publication shows. Then the API server is to be told, too, and it returns true. Called with mu held; it reads nothing but memory.
func (s *Store) compute(uid types.UID, changed bool) bool {
	e := s.entries[uid]
	if !s.open {
		return false
	}
	observed := s.observed[uid]
	if observed == nil {
		observed = &lifecyclev1.PodStatus{Uid: string(uid), Name: e.pod.Name, Namespace: e.pod.Namespace}
	}
	// What held up the pod as a whole did so before it had its sandbox. The work that follows may take minutes and say nothing.
	if sandbox := seen.Sandbox(observed); sandbox != nil && sandbox.GetId() != e.wholeIn {
		e.whole, e.wholeIn = podstatus.Reason{}, ""
	}
	in := podstatus.Inputs{
		Now: s.cfg.Clock.Now(), Reasons: e.reasons, Previous: e.previous(), RuntimeName: s.runtimeName, HostIPs: s.hostIPs,
		Messages: e.messages, Terminal: e.state >= podworkers.Terminated, Reason: e.whole.Reason, Message: e.whole.Message,
		Cgroup: e.cgroup, Undecided: e.undecided,
	}
	if s.cfg.Resizes != nil {
		in.Resize, _ = s.cfg.Resizes.Get(uid)
	}
	if s.cfg.Probes != nil {
		in.Readiness, in.Started, in.ProbedSince, in.Unhealthy = s.cfg.Probes.Ready, s.cfg.Probes.Started, s.cfg.Probes.Since, s.cfg.Probes.Unhealthy
	}
	if s.cfg.Replaced != nil {
		in.Replaced = func(containerID string) bool { return s.cfg.Replaced(uid, containerID) }
	}
	status := s.cfg.Generate(e.pod, observed, in)
	if s.cfg.Probes != nil {
		s.cfg.Probes.Observe(e.pod, observed, status.PodIP, e.state > podworkers.Syncing || e.eviction != nil)
	}
	if e.eviction != nil {
		e.eviction.apply(e.pod, &status, e.worked || !isEmpty(observed))
	}
	if before := &e.pod.Status; !e.worked && isEmpty(observed) && (before.Phase == v1.PodFailed || before.Phase == v1.PodSucceeded) {
		// It had ended before this process began, and its worker will say what else there is to say. Nothing of it waits.
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses =
			before.InitContainerStatuses, before.ContainerStatuses, before.EphemeralContainerStatuses
	}
	e.keepLast(&status)
	if !changed && equality.Semantic.DeepEqual(&e.status, &status) {
		return false
	}
	before := e.status
	e.status = status
	s.measure(e, &before, observed)
	ready := isReady(&status)
	e.readyTold = e.readyTold && ready
	s.report(e)
	data, err := withStatus(e).Marshal()
	if err != nil { // a pod that came over the wire as bytes can be made bytes again
		s.cfg.Logger.Error("a pod cannot be published", "pod", e.pod.Namespace+"/"+e.pod.Name, "error", err)
		return true
	}
	s.level.Put(string(uid), &enginev1.Pod{Pod: data, Source: e.source, WorkerState: e.state.Proto(), Traceparent: e.traceparent})
	return true
}

// withStatus returns the pod with its status; what they hold is shared.
func withStatus(e *entry) *v1.Pod {
	pod := *e.pod
	pod.Status = e.status
	return &pod
}

func isReady(status *v1.PodStatus) bool {
	return slices.ContainsFunc(status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}
