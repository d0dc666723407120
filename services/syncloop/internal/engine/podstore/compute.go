package podstore

import (
	"bytes"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	seen "github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// compute computes the status of a pod. If the pod differs from the published one, or changed is true because something
// else in the message has changed, it reports the pod to the API server, publishes it, and returns true. Called
// with mu held; it works in memory only.
func (s *Store) compute(uid types.UID, changed bool) bool {
	e := s.entries[uid]
	if !s.open {
		return false
	}
	observed := s.observed[uid]
	if observed == nil {
		observed = &lifecyclev1.PodStatus{Uid: string(uid), Name: e.pod.Name, Namespace: e.pod.Namespace}
	}
	// A reason for the pod as a whole from before it had this sandbox is over. The next report of the worker may take
	// minutes.
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
	if s.cfg.Devices != nil {
		in.Devices = func(container string) []v1.ResourceStatus { return s.cfg.Devices(e.pod, container) }
	}
	if s.cfg.VolumeHealth != nil {
		in.VolumeHealth = s.cfg.VolumeHealth(uid)
	}
	if s.cfg.Probes != nil {
		in.Readiness, in.Started = s.cfg.Probes.Ready, s.cfg.Probes.Started
		in.ProbedSince, in.Unhealthy = s.cfg.Probes.Since, s.cfg.Probes.Unhealthy
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
	if before := &e.pod.Status; !e.worked && isEmpty(observed) &&
		(before.Phase == v1.PodFailed || before.Phase == v1.PodSucceeded) {
		// The pod had ended before this process started, so its containers do not wait. Its worker will report more.
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses =
			before.InitContainerStatuses, before.ContainerStatuses, before.EphemeralContainerStatuses
	}
	e.keepLast(&status)
	// The cluster writes these. The status has them for those who look up the claims of a pod.
	status.ResourceClaimStatuses = e.pod.Status.ResourceClaimStatuses
	status.ExtendedResourceClaimStatus = e.pod.Status.ExtendedResourceClaimStatus
	data, err := withStatus(e, status).Marshal()
	if err == nil && !changed && bytes.Equal(data, e.published) {
		return false
	}
	before := e.status
	e.status = status
	s.measure(e, &before, observed)
	ready := isReady(&status)
	e.readyTraced = e.readyTraced && ready
	s.report(e)
	if err != nil { // unreachable: the pod was decoded from bytes
		s.cfg.Logger.Error("cannot publish a pod", "pod", e.pod.Namespace+"/"+e.pod.Name, "error", err)
		return true
	}
	e.published = data
	s.level.Put(string(uid), &enginev1.Pod{
		Pod: data, Source: e.source, WorkerState: e.state.Proto(), Traceparent: e.traceparent,
	})
	return true
}

// withStatus returns the pod with a status; what they hold is shared.
func withStatus(e *entry, status v1.PodStatus) *v1.Pod {
	pod := *e.pod
	pod.Status = status
	return &pod
}

func isReady(status *v1.PodStatus) bool {
	return slices.ContainsFunc(status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}
