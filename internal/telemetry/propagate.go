package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// AnnotationTraceparent is the annotation on sandboxes and containers that holds the W3C traceparent of the span that
// created them.
const AnnotationTraceparent = "quartet.dev/traceparent"

// headerTraceparent is the name of the traceparent in the metadata of a gRPC call, and in the carriers of propagators.
const headerTraceparent = "traceparent"

// Traceparent returns the W3C traceparent of the span in ctx, empty when there is none. That of a span that is not sampled
// says so: who begins the trace decides for everybody downstream, who would else begin traces of their own.
func Traceparent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[headerTraceparent]
}

// WithTraceparent returns ctx with the span that traceparent names as its parent; ctx itself when traceparent is empty
// or cannot be read.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{headerTraceparent: traceparent})
}

// Outgoing puts the traceparent of the span in ctx into the metadata of the gRPC calls that are made with the context that
// it returns; ctx itself when it has no span.
func Outgoing(ctx context.Context) context.Context {
	if traceparent := Traceparent(ctx); traceparent != "" {
		return metadata.AppendToOutgoingContext(ctx, headerTraceparent, traceparent)
	}
	return ctx
}

// LinkTo links a span to the ones that traceparents name. Those that are empty, that are not kept, or that are of the
// span's own trace are left out: a link to them leads nowhere.
func LinkTo(span trace.Span, traceparents ...string) {
	if !span.IsRecording() {
		return
	}
	for _, traceparent := range traceparents {
		to := trace.SpanContextFromContext(WithTraceparent(context.Background(), traceparent))
		if to.IsSampled() && to.TraceID() != span.SpanContext().TraceID() {
			span.AddLink(trace.Link{SpanContext: to})
		}
	}
}
