package podstore

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	seen "github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// Observed implements podworkers.Statuses.
func (s *Store) Observed(uid types.UID) *lifecyclev1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.observed[uid]
}

// AnyAlive reports whether anything of a pod may have processes or namespaces, as last observed.
func (s *Store) AnyAlive(uid types.UID) bool { return seen.AnyAlive(s.Observed(uid)) }

// Observe implements podworkers.Statuses. It reads termination messages first and waits for the disk, so it is called
// by the pod's own worker.
func (s *Store) Observe(uid types.UID, status *lifecyclev1.PodStatus) {
	s.ReadMessages(uid, status)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observe(uid, status)
}

// observe stores an observation. Called with mu held.
func (s *Store) observe(uid types.UID, status *lifecyclev1.PodStatus) {
	known, e := s.observed[uid], s.entries[uid]
	if status == nil || (known != nil && !isNews(known, status)) {
		return
	}
	if e == nil {
		if isEmpty(status) {
			delete(s.observed, uid)
		} else {
			s.observed[uid] = status
		}
		return
	}
	s.observed[uid] = status
	if !seen.SameContent(known, status) {
		s.compute(uid, false)
	}
}

// OtherRuns reports whether a pod with this full name and another UID runs. It returns true as long as not everything
// that runs is known.
func (s *Store) OtherRuns(name types.NamespacedName, uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open {
		return true
	}
	for other, status := range s.observed {
		if other != uid && status.GetName() == name.Name && status.GetNamespace() == name.Namespace && seen.AnyAlive(status) {
			return true
		}
	}
	return false
}

// isNews reports whether a status is newer than the known one: it was observed later, or it adds to the same
// observation that the pod could not be inspected after it.
func isNews(known, status *lifecyclev1.PodStatus) bool {
	if at := status.GetObservedBoottimeNs(); at != known.GetObservedBoottimeNs() {
		return at > known.GetObservedBoottimeNs()
	}
	return status.GetInspectError() != "" && status.GetInspectError() != known.GetInspectError()
}

// Gone records that a pod was missing in a fresh snapshot of pleg, without an inspection of the pod. The record counts
// as newer than the known observation and as older than every later one.
func (s *Store) Gone(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.observed[uid]
	if known == nil {
		return
	}
	s.observe(uid, &lifecyclev1.PodStatus{
		Uid: string(uid), Name: known.GetName(), Namespace: known.GetNamespace(), Ips: known.GetIps(),
		ObservedBoottimeNs: known.GetObservedBoottimeNs() + 1, ObservedAt: known.GetObservedAt(),
	})
}

// Event stores the observation of an event of pleg; call [Store.ReadMessages] before it. If the start of a container
// has made the pod ready, the trace of the change ends here with the span "status.update".
func (s *Store) Event(event *lifecyclev1.Event) {
	uid := types.UID(event.GetPodUid())
	begun := s.cfg.Clock.Now()
	s.mu.Lock()
	s.causedBy(uid, event.GetTraceparent())
	s.observe(uid, event.GetStatus())
	s.mu.Unlock()
	if event.GetType() == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED {
		s.traceReady(uid, event.GetTraceparent(), begun)
	}
}

// Probed computes the status of a pod again, because the result of a probe has changed. If that has made the pod ready,
// the trace ends as in [Store.Event].
func (s *Store) Probed(uid types.UID, traceparent string) {
	begun := s.cfg.Clock.Now()
	s.mu.Lock()
	if s.entries[uid] != nil {
		s.causedBy(uid, traceparent)
		s.compute(uid, false)
	}
	s.mu.Unlock()
	s.traceReady(uid, traceparent, begun)
}

// causedBy records the trace of the newest change of a pod. Called with mu held.
func (s *Store) causedBy(uid types.UID, traceparent string) {
	if e := s.entries[uid]; e != nil && traceparent != "" {
		e.cause = traceparent
	}
}

// traceReady ends the trace of a change that has made a pod ready, once for each time that the pod becomes ready.
func (s *Store) traceReady(uid types.UID, traceparent string, begun time.Time) {
	s.mu.Lock()
	e := s.entries[uid]
	if e == nil || !s.open || e.readyTraced || !isReady(&e.status) {
		s.mu.Unlock()
		return
	}
	e.readyTraced = true
	about := telemetry.Subject{Namespace: e.pod.Namespace, Pod: e.pod.Name, UID: string(uid)}
	phase := string(e.status.Phase)
	s.mu.Unlock()

	ctx := telemetry.WithTraceparent(context.Background(), traceparent)
	ctx, span := telemetry.Start(ctx, s.cfg.Tracer, "status.update", about, trace.WithTimestamp(begun))
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrPhase.String(phase), telemetry.AttrReady.Bool(true))
	}
	span.End()
	s.cfg.Logger.InfoContext(ctx, "pod is ready", telemetry.KeyPod, about.Namespace+"/"+about.Pod,
		telemetry.KeyPodUID, about.UID, telemetry.KeyPhase, phase)
}

func isEmpty(status *lifecyclev1.PodStatus) bool {
	return len(status.GetSandboxes()) == 0 && len(status.GetContainers()) == 0
}

// AllObserved returns the observations of all pods in the runtime, including pods that no source names. Known is false
// as long as not all of them are known.
func (s *Store) AllObserved() (all []*lifecyclev1.PodStatus, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.observed)), s.open
}

// Unknown returns the observations of pods that are not in the store: no source names them, and no worker stops them
// yet.
func (s *Store) Unknown() []*lifecyclev1.PodStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var unknown []*lifecyclev1.PodStatus
	for uid, status := range s.observed {
		if s.entries[uid] == nil {
			unknown = append(unknown, status)
		}
	}
	return unknown
}
