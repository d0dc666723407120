package telemetry

import (
	"context"
	"errors"
	"reflect"
	"regexp"
	"time"

	otelcodes "go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Start begins a span about a subject. Attributes are created only if the span records, so that an unsampled span costs
// little; callers with more attributes check span.IsRecording first.
func Start(
	ctx context.Context,
	tracer trace.Tracer,
	name string,
	about Subject,
	options ...trace.SpanStartOption,
) (context.Context, trace.Span) {
	ctx, span := tracer.Start(ctx, name, options...)
	if span.IsRecording() {
		span.SetAttributes(about.Attributes()...)
	}
	return ctx, span
}

// End ends a span, as failed if err is not nil.
func End(span trace.Span, err error) {
	Fail(span, err)
	span.End()
}

// Fail records the failure of a span: as its status, as an event "exception", and in error.type. It is a no-op if err
// is nil. It removes secrets in addresses.
func Fail(span trace.Span, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	text, kind := redact(err.Error()), ErrorType(err)
	// This is span.RecordError with a redacted message.
	span.AddEvent(
		semconv.ExceptionEventName,
		trace.WithAttributes(semconv.ExceptionType(reflect.TypeOf(err).String()), semconv.ExceptionMessage(text)),
	)
	span.SetStatus(otelcodes.Error, text)
	span.SetAttributes(AttrErrorType.String(kind))
}

// FailWith records the failure of a span without a Go error: kind is the value of error.type, text a sentence.
func FailWith(span trace.Span, kind, text string) {
	if !span.IsRecording() {
		return
	}
	span.SetStatus(otelcodes.Error, redact(text))
	span.SetAttributes(AttrErrorType.String(kind))
}

// ErrorType returns the type of err in one word: the result of its own method ErrorType, such as a reason of
// Kubernetes, or else its gRPC code, or else its Go type.
func ErrorType(err error) string {
	if typed := (interface{ ErrorType() string })(nil); errors.As(err, &typed) {
		return typed.ErrorType()
	}
	if s, ok := status.FromError(err); ok {
		return CodeName(s.Code())
	}
	if s := status.FromContextError(err); s.Code() != codes.Unknown {
		return CodeName(s.Code())
	}
	return semconv.ErrorType(err).Value.AsString()
}

// CodeName returns a gRPC code as the conventions write it: OK, NOT_FOUND.
func CodeName(c codes.Code) string {
	return code.Code(c).String() //nolint:gosec // there are 17
}

var (
	// credentials matches a user, or a user and a password, in an address.
	credentials = regexp.MustCompile(`(\w://)[^/\s"'@]+@`)
	// query matches the query of an address, which may contain a signature.
	query = regexp.MustCompile(`(\w://[^\s"'?]*\?)[^\s"']*`)
)

// maxText bounds the text of an error on a span, in bytes, because a runtime may return a whole log.
const maxText = 4 << 10

// redact removes the secrets of addresses.
func redact(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	return query.ReplaceAllString(credentials.ReplaceAllString(text, "${1}…@"), "${1}…")
}

// minWait is the minimum duration of a wait with a span.
const minWait = 5 * time.Millisecond

// Wait records a wait as a span named "wait" below the span in ctx. reason is its cause in a few words: "its turn",
// "main: CrashLoopBackOff". It is a no-op for a wait of less than 5 ms, and outside of a trace.
func Wait(ctx context.Context, tracer trace.Tracer, about Subject, reason string, since, until time.Time) {
	if until.Sub(since) < minWait || !trace.SpanContextFromContext(ctx).IsSampled() {
		return
	}
	_, span := Start(ctx, tracer, SpanWait, about, trace.WithTimestamp(since))
	span.SetAttributes(AttrWait.String(reason))
	span.End(trace.WithTimestamp(until))
}

// Idle marks a root span without a result, so that it is not exported. The span must not have children.
func Idle(span trace.Span) {
	if span.IsRecording() {
		span.SetAttributes(attrIdle.Bool(true))
	}
}

// Off returns a tracer whose spans are discarded. Starting one allocates nothing; a remote trace context passes through
// unchanged.
func Off() trace.Tracer { return off{} }

// off differs from noop.Tracer in that it creates no new context.
type off struct{ noop.Tracer }

// Start implements trace.Tracer.
func (o off) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	span := trace.SpanFromContext(ctx)
	if span.IsRecording() {
		return o.Tracer.Start(ctx, name, options...) // its owner ends it
	}
	return ctx, span
}
