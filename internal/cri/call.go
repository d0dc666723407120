package cri

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// Caller makes traced calls to the runtime, each in its own client span. The call's metadata carries the W3C
// traceparent, so that the runtime's own spans are its children. cri-client's own tracing is not used because it adds
// an event for each message, which cannot be turned off.
type Caller struct {
	tracer trace.Tracer
	socket string
	// kind is created once, so that an untraced call allocates nothing.
	kind []trace.SpanStartOption
}

// NewCaller returns a Caller whose calls go to an endpoint, for example "unix:///run/containerd/containerd.sock".
func NewCaller(tracer trace.Tracer, endpoint string) Caller {
	return Caller{
		tracer: tracer, socket: strings.TrimPrefix(endpoint, "unix://"),
		kind: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)},
	}
}

// Call makes one call. method is its full name, one of the constants of runtimeapi that end in FullMethodName. The
// context of do carries the trace, and keeps cri-client from logging errors that the caller receives anyway. Call
// returns the result of do. expected, which may be nil, selects the errors that do not fail the span.
func (c Caller) Call(
	ctx context.Context,
	method string,
	about telemetry.Subject,
	expected func(error) bool,
	do func(context.Context) error,
) error {
	name := strings.TrimPrefix(method, "/")
	ctx, span := telemetry.Start(ctx, c.tracer, name, about, c.kind...)
	err := do(Quiet(telemetry.Outgoing(ctx)))
	if span.IsRecording() {
		span.SetAttributes(telemetry.Call(name, status.Code(err), c.socket)...)
	}
	failed := err
	if err != nil && expected != nil && expected(err) {
		failed = nil
	}
	telemetry.End(span, failed)
	return err
}
