package relist

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/timestamppb"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

// publish makes events of changes, in their order, makes the record what new subscribers begin with, and has what was
// told kept when there are changes or moved says that there is something else to it. Called with mu held.
//
// When it is not known what was told before this process, what is found until the first relist has finished makes no
// spans and no events, only the state: it may have happened long before. When it is, it makes the events that are
// missing; nobody listens yet, but who has been told what came before is sent them when he comes back.
func (r *Relister) publish(uid string, p *pod, changes []record.Change, moved bool) {
	if r.isSynced() || r.remembers {
		r.emit(uid, p, changes)
	} else {
		r.show(uid, p)
	}
	if moved || len(changes) > 0 {
		r.cfg.Told.Note(uid, p.record, r.cfg.Events.Token())
	}
}

// emit publishes the events of changes. Called with mu held.
func (r *Relister) emit(uid string, p *pod, changes []record.Change) {
	status, now, gone := p.record.Status, r.cfg.Clock.Now(), p.record.Gone()
	if p.unseen && p.record.Inspected() {
		r.cfg.Events.Withhold(len(changes))
	}
	for i, change := range changes {
		ctx, event := r.event(status, change, now)
		r.cfg.Metrics.published(change, now)
		p.traceparent = event.GetTraceparent()
		r.cfg.Logger.DebugContext(ctx, "lifecycle event", telemetry.KeyEvent, nameOf(event.GetType()), telemetry.KeyPodUID, uid,
			telemetry.KeyContainer, event.GetContainerName(), telemetry.KeyContainerID, event.GetContainerId(),
			telemetry.KeyExitCode, event.GetExitCode(), telemetry.KeyReason, event.GetReason())
		if gone && i == len(changes)-1 {
			r.cfg.Events.EmitLast(uid, event)
			p.shown = false
			return
		}
		r.cfg.Events.Emit(uid, event, stateOf(status, p, now))
		p.shown = true
	}
	if len(changes) == 0 {
		r.show(uid, p)
	}
}

// show makes the record what new subscribers begin with, without an event. Called with mu held.
func (r *Relister) show(uid string, p *pod) {
	state := stateOf(p.record.Status, p, r.cfg.Clock.Now())
	switch {
	case p.shown && p.record.Gone():
		// Nobody listens yet, or it would have made an event.
		r.cfg.Events.EmitLast(uid, state)
		p.shown = false
	case p.shown:
		r.cfg.Events.Replace(uid, state)
	case !p.record.Gone():
		r.cfg.Events.Put(uid, state)
		p.shown = true
	}
}

// stateOf is what a new subscriber begins with: POD_SYNC, with the status.
func stateOf(status *lifecyclev1.PodStatus, p *pod, now time.Time) *lifecyclev1.Event {
	at := timestamppb.New(now)
	return &lifecyclev1.Event{
		Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: status.GetUid(), OccurredAt: at, ObservedAt: at,
		Traceparent: p.traceparent, Status: status,
	}
}

// event makes the event of a change, and a context that has its span.
func (r *Relister) event(status *lifecyclev1.PodStatus, change record.Change, now time.Time) (context.Context, *lifecyclev1.Event) {
	occurred := change.OccurredAt
	if occurred.IsZero() {
		occurred = now
	}
	event := &lifecyclev1.Event{
		Type: change.Type, PodUid: status.GetUid(), OccurredAt: timestamppb.New(occurred), ObservedAt: timestamppb.New(now), Status: status,
	}
	if c := change.Container; c != nil {
		event.ContainerId, event.ContainerName = c.GetId(), c.GetName()
		if change.Type == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED {
			event.ExitCode, event.Reason = c.GetExitCode(), c.GetReason()
		}
	}
	ctx := r.trace(status, change, occurred, now)
	event.Traceparent = telemetry.Traceparent(ctx)
	return ctx, event
}

// trace makes the span of an event and returns a context that has it. What the agent has just brought about, a
// container's start, an init container's good end or a sandbox's, goes on with the trace that is written on it;
// everything later begins a trace of its own, with a link to that one. The span runs from when it happened to when it
// was noticed; that of a container which did not end well has failed.
func (r *Relister) trace(status *lifecyclev1.PodStatus, change record.Change, occurred, now time.Time) context.Context {
	ctx := context.Background()
	origin, continues := originOf(status, change)
	if continues {
		ctx = telemetry.WithTraceparent(ctx, origin)
	}
	c := change.Container
	ctx, span := telemetry.Start(ctx, r.cfg.Tracer, "lifecycle.event", telemetry.Subject{
		Namespace: status.GetNamespace(), Pod: status.GetName(), UID: status.GetUid(),
		Container: c.GetName(), ContainerID: c.GetId(), SandboxID: change.Sandbox.GetId(),
	}, trace.WithTimestamp(occurred))
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrEvent.String(nameOf(change.Type)))
		telemetry.LinkTo(span, origin)
		if c != nil {
			span.SetAttributes(telemetry.AttrRestartCount.Int(podlabels.RestartOf(c.GetAnnotations(), c.GetAttempt()).Count))
		}
		if change.Type == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED {
			traceDeath(span, c)
		}
	}
	span.End(trace.WithTimestamp(now))
	return ctx
}

// traceDeath notes how a container ended.
func traceDeath(span trace.Span, c *lifecyclev1.Container) {
	code, reason := c.GetExitCode(), cmp.Or(c.GetReason(), "Unknown")
	span.SetAttributes(telemetry.AttrExitCode.Int(int(code)), telemetry.AttrReason.String(reason))
	if code != 0 {
		telemetry.FailWith(span, reason, fmt.Sprintf("container %q ended with exit code %d (%s)", c.GetName(), code, reason))
	}
}

// nameOf is the type of an event as people read it: `quartet events` has the same words.
func nameOf(t lifecyclev1.EventType) string {
	switch t {
	case lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED:
		return "ContainerStarted"
	case lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED:
		return "ContainerDied"
	case lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED:
		return "ContainerRemoved"
	case lifecyclev1.EventType_EVENT_TYPE_POD_SYNC:
		return "PodSync"
	case lifecyclev1.EventType_EVENT_TYPE_UNSPECIFIED:
	}
	return t.String()
}

// originOf returns the traceparent of what started the thing that an event is about, and whether the event belongs to
// that same trace.
func originOf(status *lifecyclev1.PodStatus, change record.Change) (traceparent string, continues bool) {
	switch {
	case change.Container != nil:
		return change.Container.GetAnnotations()[telemetry.AnnotationTraceparent], isPartOfStart(change)
	case change.Sandbox != nil:
		return change.Sandbox.GetAnnotations()[telemetry.AnnotationTraceparent], true
	case len(status.GetSandboxes()) > 0:
		return status.GetSandboxes()[0].GetAnnotations()[telemetry.AnnotationTraceparent], false
	}
	return "", false
}

// isPartOfStart is true for what belongs to the start of the pod: a container has started, or an init container has
// ended well and so lets the next one start.
func isPartOfStart(change record.Change) bool {
	c := change.Container
	return change.Type == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED ||
		change.Type == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED && c.GetExitCode() == 0 && c.GetAnnotations()[podlabels.InitContainer] == "true"
}
