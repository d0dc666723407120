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

// Start begins a span about something. Attributes are only made when the span records, so that nothing is paid for one
// that is not kept; callers who have more to say ask span.IsRecording first.
func Start(ctx context.Context, tracer trace.Tracer, name string, about Subject, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := tracer.Start(ctx, name, options...)
	if span.IsRecording() {
		span.SetAttributes(about.Attributes()...)
	}
	return ctx, span
}

// End ends a span, as failed when err is not nil.
func End(span trace.Span, err error) {
	Fail(span, err)
	span.End()
}

// Fail notes why a span failed: as its status, as an event of the kind "exception", and by error.type. It does nothing when
// err is nil. Secrets that addresses carry are left out.
func Fail(span trace.Span, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	text, kind := redact(err.Error()), ErrorType(err)
	// What span.RecordError does, with a message that is safe.
	span.AddEvent(semconv.ExceptionEventName, trace.WithAttributes(semconv.ExceptionType(reflect.TypeOf(err).String()), semconv.ExceptionMessage(text)))
	span.SetStatus(otelcodes.Error, text)
	span.SetAttributes(AttrErrorType.String(kind))
}

// FailWith notes that a span failed where there is no error of Go: kind is a word for error.type, text a sentence.
func FailWith(span trace.Span, kind, text string) {
	if !span.IsRecording() {
		return
	}
	span.SetStatus(otelcodes.Error, redact(text))
	span.SetAttributes(AttrErrorType.String(kind))
}

// ErrorType says in one word what kind of error err is: what its own method ErrorType says, such as a reason of Kubernetes,
// else the gRPC code that it carries, else its type in Go.
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

// CodeName is a gRPC code as the conventions write it: OK, NOT_FOUND.
func CodeName(c codes.Code) string {
	return code.Code(c).String() //nolint:gosec // there are 17
}

var (
	// credentials are a user, or a user and a password, in an address.
	credentials = regexp.MustCompile(`(\w://)[^/\s"'@]+@`)
	// query is the query of an address: signed ones have their signature there.
	query = regexp.MustCompile(`(\w://[^\s"'?]*\?)[^\s"']*`)
)

// maxText bounds the text of an error on a span, in bytes: a runtime may answer with a whole log.
const maxText = 4 << 10

// redact leaves out what is secret in addresses.
func redact(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	return query.ReplaceAllString(credentials.ReplaceAllString(text, "${1}…@"), "${1}…")
}

// minWait is the shortest wait that is worth a span.
const minWait = 5 * time.Millisecond

// Wait records that something waited, as a span named "wait" below the span in ctx. The reason says for what, in a few words:
// "its turn", "main: CrashLoopBackOff". It records nothing for a wait of less than 5 ms, nor for one that belongs to no trace.
func Wait(ctx context.Context, tracer trace.Tracer, about Subject, reason string, since, until time.Time) {
	if until.Sub(since) < minWait || !trace.SpanContextFromContext(ctx).IsSampled() {
		return
	}
	_, span := Start(ctx, tracer, SpanWait, about, trace.WithTimestamp(since))
	span.SetAttributes(AttrWait.String(reason))
	span.End(trace.WithTimestamp(until))
}

// Idle says of a root span that nothing came of it, so that it is not sent. Only a span without children may be idle.
func Idle(span trace.Span) {
	if span.IsRecording() {
		span.SetAttributes(attrIdle.Bool(true))
	}
}

// Off returns a tracer whose spans go nowhere. Starting one allocates nothing; a trace that comes from elsewhere goes
// through it as it is.
func Off() trace.Tracer { return off{} }

// off differs from noop.Tracer in that it makes no new context.
type off struct{ noop.Tracer }

// Start implements trace.Tracer.
func (o off) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	span := trace.SpanFromContext(ctx)
	if span.IsRecording() {
		return o.Tracer.Start(ctx, name, options...) // it is somebody else's to end
	}
	return ctx, span
}
