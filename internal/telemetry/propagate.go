package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// AnnotationTraceparent is the annotation of sandboxes and containers with the W3C traceparent of the span that created
// them.
const AnnotationTraceparent = "quartet.dev/traceparent"

// headerTraceparent is the name of the traceparent in the metadata of a gRPC call, and in the carriers of propagators.
const headerTraceparent = "traceparent"

// Traceparent returns the W3C traceparent of the span in ctx; empty if there is none. It includes the sampling decision
// of an unsampled span, because otherwise processes downstream would begin their own traces.
func Traceparent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[headerTraceparent]
}

// WithTraceparent returns ctx with the span of traceparent as its parent; ctx itself if traceparent is empty or
// invalid.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{headerTraceparent: traceparent})
}

// Outgoing adds the traceparent of the span in ctx to the metadata of gRPC calls; it returns ctx itself if it has no
// span.
func Outgoing(ctx context.Context) context.Context {
	if traceparent := Traceparent(ctx); traceparent != "" {
		return metadata.AppendToOutgoingContext(ctx, headerTraceparent, traceparent)
	}
	return ctx
}

// LinkTo links a span to the spans of traceparents. It skips those that are empty, not sampled, or of the span's own
// trace, because such links are useless.
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
