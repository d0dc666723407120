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

// Observe implements podworkers.Statuses. It reads termination messages first, so it is called by the pod's own worker.
func (s *Store) Observe(uid types.UID, status *lifecyclev1.PodStatus) {
	s.ReadMessages(uid, status)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observe(uid, status)
}

// observe takes in an observation. Called with mu held.
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

// OtherRuns tells whether another pod than the one with a UID runs by a full name. While not all that runs is known, one may.
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

// isNews tells whether a status says more than the one that is known: it was observed later, or says of the same observation
// that the pod could not be inspected since.
func isNews(known, status *lifecyclev1.PodStatus) bool {
	if at := status.GetObservedBoottimeNs(); at != known.GetObservedBoottimeNs() {
		return at > known.GetObservedBoottimeNs()
	}
	return status.GetInspectError() != "" && status.GetInspectError() != known.GetInspectError()
}

// Gone takes in that pleg does not have a pod any more, without an inspection that says so: it was missing in a fresh
// snapshot. It counts as newer than what was known, and as older than anything that is written from now on.
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

// Event takes in what pleg saw with an event; [Store.ReadMessages] comes before it. When the start of a container has made the pod ready, the trace of the
// change ends here, with the span "status.update".
func (s *Store) Event(event *lifecyclev1.Event) {
	uid := types.UID(event.GetPodUid())
	begun := s.cfg.Clock.Now()
	s.mu.Lock()
	s.causedBy(uid, event.GetTraceparent())
	s.observe(uid, event.GetStatus())
	s.mu.Unlock()
	if event.GetType() == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED {
		s.tellReady(uid, event.GetTraceparent(), begun)
	}
}

// Probed takes in that a probe of a pod has another result. When that has made the pod ready, the trace ends as that of [Store.Event].
func (s *Store) Probed(uid types.UID, traceparent string) {
	begun := s.cfg.Clock.Now()
	s.mu.Lock()
	if s.entries[uid] != nil {
		s.causedBy(uid, traceparent)
		s.compute(uid, false)
	}
	s.mu.Unlock()
	s.tellReady(uid, traceparent, begun)
}

// causedBy notes whose trace it is that something new is heard of a pod. Called with mu held.
func (s *Store) causedBy(uid types.UID, traceparent string) {
	if e := s.entries[uid]; e != nil && traceparent != "" {
		e.cause = traceparent
	}
}

// tellReady ends a trace that has made a pod ready, once for each time that it has come to be.
func (s *Store) tellReady(uid types.UID, traceparent string, begun time.Time) {
	s.mu.Lock()
	e := s.entries[uid]
	if e == nil || !s.open || e.readyTold || !isReady(&e.status) {
		s.mu.Unlock()
		return
	}
	e.readyTold = true
	about, phase := telemetry.Subject{Namespace: e.pod.Namespace, Pod: e.pod.Name, UID: string(uid)}, string(e.status.Phase)
	s.mu.Unlock()

	ctx, span := telemetry.Start(telemetry.WithTraceparent(context.Background(), traceparent), s.cfg.Tracer, "status.update",
		about, trace.WithTimestamp(begun))
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrPhase.String(phase), telemetry.AttrReady.Bool(true))
	}
	span.End()
	s.cfg.Logger.InfoContext(ctx, "pod is ready", telemetry.KeyPod, about.Namespace+"/"+about.Pod, telemetry.KeyPodUID, about.UID, telemetry.KeyPhase, phase)
}

func isEmpty(status *lifecyclev1.PodStatus) bool {
	return len(status.GetSandboxes()) == 0 && len(status.GetContainers()) == 0
}

// AllObserved returns what was observed of every pod in the runtime, also of those that nobody wants. With false not all of
// it is known yet.
func (s *Store) AllObserved() (all []*lifecyclev1.PodStatus, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.observed)), s.open
}

// Unknown returns what was observed of pods that are not in the store: nobody wants them, and nobody stops them yet.
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
