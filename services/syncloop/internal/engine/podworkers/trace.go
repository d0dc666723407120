package podworkers

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// maxTries is how often a worker comes back to the same work in one trace. A pod whose image cannot be had for a week must
	// not make a trace of a week: the next try begins one, linked to the last.
	maxTries = 10
	// maxOpen bounds how many traces a piece of work is linked to.
	maxOpen = 8
)

// thread is whose traces the next piece of work of a worker continues. What a worker comes back to by itself, after a
// failure or at the end of a back-off, belongs to what had it begin: the restart of a container to its crash.
type thread struct {
	// open are the traceparents of what is not finished, one of each cause, the newest last.
	open []string
	// tries counts the pieces of work that were done for them.
	tries int
	// current is that of the running work's cause.
	current string
	// trace is the trace of the last piece of work, and pause what has followed it.
	trace trace.TraceID
	pause pause
}

// pause is a time in which a worker does nothing because its pod waits for something.
type pause struct {
	since time.Time
	// reason is what for, in a few words; empty when the pod waits for nothing.
	reason string
	// first is true for the wait before the first piece of work, which is in the trace of that.
	first bool
}

// next returns the parent of a piece of work, empty for none, and what it is to be linked to.
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

// done notes what became of the running work. What is unfinished is gone on with.
func (t *thread) done(unfinished bool) {
	if !unfinished {
		t.open, t.tries = nil, 0
		return
	}
	t.tries++
	t.open = withTraceparent(t.open, t.current)
}

// withTraceparent puts one at the end, where it may be already; the oldest goes when there are too many.
func withTraceparent(list []string, traceparent string) []string {
	if traceparent == "" {
		return list
	}
	list = slices.DeleteFunc(slices.Clone(list), func(known string) bool { return known == traceparent })
	return append(list[max(0, len(list)-maxOpen+1):], traceparent)
}

// span begins the span of a piece of work, in the trace of its cause, or of what is unfinished.
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

// waited records the pause before a piece of work that goes on in the trace of the one before.
func (w *worker) waited(ctx context.Context, about telemetry.Subject) {
	before := w.thread.pause
	w.thread.pause = pause{}
	if before.reason == "" || (!before.first && trace.SpanContextFromContext(ctx).TraceID() != w.thread.trace) {
		return
	}
	telemetry.Wait(ctx, w.pool.cfg.Tracer, about, before.reason, before.since, w.pool.cfg.Clock.Now())
}

// cutShort is the outcome of work that was interrupted, because the pod is to end or the process does.
func cutShort(span trace.Span) outcome {
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrOutcome.String("cut short"))
	}
	return outcome{skipped: true}
}
