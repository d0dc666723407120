package podworkers

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// maxTries is the number of tries in one trace. A pod whose image cannot be pulled for a week must not make a trace of
	// a week: the next try begins a new trace with a link to the last one.
	maxTries = 10
	// maxOpen bounds the number of links of a span.
	maxOpen = 8
)

// thread holds the traces that the next piece of work continues. Work after a failure or a back-off belongs to the
// trace of its original cause: the restart of a container to its crash.
type thread struct {
	// open are the traceparents of unfinished work, one of each cause, the newest last.
	open []string
	// tries counts the pieces of work for them.
	tries int
	// current is the traceparent of the running work's cause.
	current string
	// trace is the trace of the last piece of work, and pause the pause after it.
	trace trace.TraceID
	pause pause
}

// pause is a time in which a worker does nothing because its pod waits.
type pause struct {
	since time.Time
	// reason is Wait.For; empty if the pod did not wait.
	reason string
	// first is true for the wait before the first piece of work. It belongs to the trace of that work.
	first bool
}

// next returns the parent of the next piece of work, empty for a new trace, and its links.
func (t *thread) next(cause Cause) (parent string, links []string) {
	links = slices.Concat(t.open, cause.Also)
	switch last := len(t.open) - 1; {
	case cause.Traceparent != "":
		t.tries = 0
		return cause.Traceparent, links
	case last >= 0 && t.tries < maxTries:
		return t.open[last], links
	}
	t.open, t.tries = nil, 0
	return "", links
}

// done records the end of the running work. The next piece of work continues what is unfinished.
func (t *thread) done(unfinished bool) {
	if !unfinished {
		t.open, t.tries = nil, 0
		return
	}
	t.tries++
	t.open = withTraceparent(t.open, t.current)
}

// withTraceparent returns list with traceparent at its end, without duplicates and bounded by maxOpen: the oldest are
// dropped.
func withTraceparent(list []string, traceparent string) []string {
	if traceparent == "" {
		return list
	}
	list = slices.DeleteFunc(slices.Clone(list), func(known string) bool { return known == traceparent })
	return append(list[max(0, len(list)-maxOpen+1):], traceparent)
}

// span starts the span of a piece of work, in the trace of its cause or of the unfinished work.
func (w *worker) span(ctx context.Context, name string, cause Cause) (context.Context, trace.Span) {
	parent, links := w.thread.next(cause)
	about := telemetry.Subject{Namespace: w.fullName.Namespace, Pod: w.fullName.Name, UID: string(w.uid)}
	ctx = telemetry.WithTraceparent(ctx, parent)
	w.waited(ctx, about)
	ctx, span := telemetry.Start(ctx, w.pool.cfg.Tracer, name, about)
	w.thread.trace = span.SpanContext().TraceID()
	if w.thread.current = parent; parent == "" {
		w.thread.current = telemetry.Traceparent(ctx)
	}
	w.looking = cause.Kind == CauseDue && parent == "" && len(links) == 0
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrCause.String(cause.Kind.String()), telemetry.AttrTry.Int(w.thread.tries+1))
		telemetry.LinkTo(span, links...)
	}
	return ctx, span
}

// waited records the pause before a piece of work that continues the trace of the last one.
func (w *worker) waited(ctx context.Context, about telemetry.Subject) {
	before := w.thread.pause
	w.thread.pause = pause{}
	if before.reason == "" || (!before.first && trace.SpanContextFromContext(ctx).TraceID() != w.thread.trace) {
		return
	}
	telemetry.Wait(ctx, w.pool.cfg.Tracer, about, before.reason, before.since, w.pool.cfg.Clock.Now())
}

// cutShort returns the outcome of canceled work: the pod is to end, or the process ends.
func cutShort(span trace.Span) outcome {
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrOutcome.String("cut short"))
	}
	return outcome{skipped: true}
}
