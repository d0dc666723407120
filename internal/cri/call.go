package cri

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// Caller makes traced calls of the runtime, each in a client span of its own. The trace goes on to the runtime as W3C
// traceparent in the metadata of the call, so that the runtime's own spans stand below that of the call. (cri-client's own
// tracing makes an event for each message besides, and cannot be told not to.)
type Caller struct {
	tracer trace.Tracer
	socket string
	// kind is made once, so that a call that is not traced makes nothing.
	kind []trace.SpanStartOption
}

// NewCaller returns a Caller whose calls go to an endpoint, for example "unix:///run/containerd/containerd.sock".
func NewCaller(tracer trace.Tracer, endpoint string) Caller {
	return Caller{
		tracer: tracer, socket: strings.TrimPrefix(endpoint, "unix://"),
		kind: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)},
	}
}

// Call makes one call. Method is its full name, one of the constants of runtimeapi that end in FullMethodName. do gets a
// context that carries the trace, and keeps cri-client from logging what its caller is told anyway. Call returns what do
// returns. An error of which expected, which may be nil, says that it is none leaves the span a good one.
func (c Caller) Call(ctx context.Context, method string, about telemetry.Subject, expected func(error) bool, do func(context.Context) error) error {
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
