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

// publish publishes changes as events, in their order, and makes the record part of the snapshot for new subscribers.
// It notes the pod in the journal if there are changes, or if moved reports that the published state has changed. The
// caller holds mu.
//
// If the state of the previous process is unknown, changes before the end of the first relist make no spans and no
// events, because they may have happened long before. If it is known, they make the missing events. There are no
// subscribers yet, but resumed followers receive these events.
func (r *Relister) publish(uid string, p *pod, changes []record.Change, moved bool) {
	if r.isSynced() || r.remembers {
		r.emit(uid, p, changes)
	} else {
		r.show(uid, p)
	}
	if moved && len(changes) == 0 {
		r.cfg.Events.Moved()
	}
	if moved || len(changes) > 0 {
		r.cfg.Journal.Note(uid, p.record, r.cfg.Events.Token())
	}
}

// emit publishes the events of changes, all at once: a subscriber that began between two of them would be told of the
// second one twice, by the status and by its event. The caller holds mu.
func (r *Relister) emit(uid string, p *pod, changes []record.Change) {
	status, now, gone := p.record.Status, r.cfg.Clock.Now(), p.record.Gone()
	if p.unseen && p.record.Inspected() {
		r.cfg.Events.Withhold(len(changes))
	}
	var events []*lifecyclev1.Event
	for _, change := range changes {
		ctx, event := r.event(status, change, now)
		r.cfg.Metrics.published(change, now)
		p.traceparent = event.GetTraceparent()
		r.cfg.Logger.DebugContext(ctx, "lifecycle event", telemetry.KeyEvent, nameOf(event.GetType()),
			telemetry.KeyPodUID, uid, telemetry.KeyContainer, event.GetContainerName(),
			telemetry.KeyContainerID, event.GetContainerId(), telemetry.KeyExitCode, event.GetExitCode(),
			telemetry.KeyReason, event.GetReason())
		events = append(events, event)
	}
	switch {
	case len(events) == 0:
		r.show(uid, p)
	case gone:
		r.cfg.Events.EmitLast(uid, events...)
		p.shown = false
	default:
		r.cfg.Events.EmitAll(uid, events, stateOf(status, p, now))
		p.shown = true
	}
}

// show makes the record part of the snapshot for new subscribers, without an event. The caller holds mu.
func (r *Relister) show(uid string, p *pod) {
	state := stateOf(p.record.Status, p, r.cfg.Clock.Now())
	switch {
	case p.shown && p.record.Gone():
		// There are no subscribers yet, otherwise there would be an event.
		r.cfg.Events.EmitLast(uid, state)
		p.shown = false
	case p.shown:
		r.cfg.Events.Replace(uid, state)
	case !p.record.Gone():
		r.cfg.Events.Put(uid, state)
		p.shown = true
	}
}

// stateOf returns the snapshot entry of a pod: POD_SYNC, with the status.
func stateOf(status *lifecyclev1.PodStatus, p *pod, now time.Time) *lifecyclev1.Event {
	at := timestamppb.New(now)
	return &lifecyclev1.Event{
		Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: status.GetUid(), OccurredAt: at, ObservedAt: at,
		Traceparent: p.traceparent, Status: status,
	}
}

// event returns the event of a change, and a context with its span.
func (r *Relister) event(
	status *lifecyclev1.PodStatus,
	change record.Change,
	now time.Time,
) (context.Context, *lifecyclev1.Event) {
	occurred := change.OccurredAt
	if occurred.IsZero() {
		occurred = now
	}
	event := &lifecyclev1.Event{
		Type:       change.Type,
		PodUid:     status.GetUid(),
		OccurredAt: timestamppb.New(occurred),
		ObservedAt: timestamppb.New(now),
		Status:     status,
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

// trace creates the span of an event and returns a context with it. Changes that the agent has just caused, such as the
// start of a container, a sandbox, or the successful end of an init container, continue the trace in the object's
// annotation; all later changes begin a new trace with a link to that one. The span lasts from the change to its
// observation; it is failed for a container that did not end successfully.
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

// traceDeath records how a container ended.
func traceDeath(span trace.Span, c *lifecyclev1.Container) {
	code, reason := c.GetExitCode(), cmp.Or(c.GetReason(), "Unknown")
	span.SetAttributes(telemetry.AttrExitCode.Int(int(code)), telemetry.AttrReason.String(reason))
	if code != 0 {
		telemetry.FailWith(span, reason, fmt.Sprintf("container %q ended with exit code %d (%s)", c.GetName(), code, reason))
	}
}

// nameOf returns the readable type of an event, as in `quartet events`.
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

// originOf returns the traceparent of the start of the event's object, and whether the event belongs to that trace.
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

// isPartOfStart reports whether a change belongs to the start of the pod: a container has started, or an init container
// has succeeded.
func isPartOfStart(change record.Change) bool {
	c := change.Container
	return change.Type == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED ||
		change.Type == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED && c.GetExitCode() == 0 &&
			c.GetAnnotations()[podlabels.InitContainer] == "true"
}
