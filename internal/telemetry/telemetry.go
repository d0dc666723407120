// Package telemetry gives each process its logger and its tracer, and carries trace contexts in the messages between
// processes: a change gets its trace when configmux first sees it, the traceparent travels inside each message and on
// sandboxes and containers as an annotation.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// The keys of log attributes and span attributes: one word for one thing in both.
const (
	KeyPod          = "pod"
	KeyPodUID       = "pod.uid"
	KeyContainer    = "container"
	KeyContainerID  = "container.id"
	KeySandboxID    = "sandbox.id"
	KeyImage        = "image"
	KeySource       = "source"
	KeyFile         = "file"
	KeyOp           = "op"
	KeyEvent        = "event"
	KeyExitCode     = "exit_code"
	KeyReason       = "reason"
	KeyPhase        = "phase"
	KeyReady        = "ready"
	KeyError        = "error"
	KeyRetryAfter   = "retry_after"
	KeyDuration     = "duration"
	KeyGracePeriod  = "grace_period"
	KeyRestartCount = "restart_count"
)

// AnnotationTraceparent is the annotation on sandboxes and containers that holds the W3C traceparent of the span that
// created them.
const AnnotationTraceparent = "quartet.dev/traceparent"

// scope is the instrumentation scope of all of Quartet's spans.
const scope = "github.com/quartet-node/quartet"

// Telemetry is what a process logs and traces with.
type Telemetry struct {
	// Logger writes text lines to the standard error stream. It is also slog's default.
	Logger *slog.Logger
	// Tracer makes spans; they go nowhere and cost nothing when no endpoint is set.
	Tracer trace.Tracer
	// Provider is nil when no endpoint is set, so that clients can leave their instrumentation out.
	Provider trace.TracerProvider
	shutdown func(context.Context) error
}

// Setup makes the telemetry of a process. Spans are sent by OTLP over gRPC when OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set; the standard OTEL variables say how. Verbosity follows klog: 0 to 2 logs
// what an operator needs, 4 and more adds the details of each decision. It fails when the variables cannot be understood.
func Setup(ctx context.Context, service string, verbosity int) (*Telemetry, error) {
	level := slog.LevelInfo
	if verbosity >= 4 {
		level = slog.LevelDebug
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("service", service)
	slog.SetDefault(logger)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		logger.Warn("traces could not be sent", KeyError, err)
	}))
	otel.SetLogger(logr.Discard())
	otel.SetTextMapPropagator(propagation.TraceContext{})

	t := &Telemetry{Logger: logger, Tracer: noop.NewTracerProvider().Tracer(scope), shutdown: func(context.Context) error { return nil }}
	if !endpointSet() {
		return t, nil
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("make the OTLP trace exporter from the OTEL_EXPORTER_OTLP_* variables: %w", err)
	}
	res, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName(service), semconv.ServiceNamespace("quartet")), resource.WithFromEnv(), resource.WithHost())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	otel.SetTracerProvider(provider)
	t.Provider, t.Tracer, t.shutdown = provider, provider.Tracer(scope), provider.Shutdown
	return t, nil
}

// RouteLibraryLogs sends what Kubernetes' libraries and gRPC log to the logger. They keep their loggers in globals that are
// not to be set while they work, so main calls this, first thing after Setup.
func (t *Telemetry) RouteLibraryLogs() {
	klog.SetSlogLogger(t.Logger.With("from", "kubernetes"))
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, lineWriter{t.Logger.With("from", "grpc")}))
}

// lineWriter logs what is written to it as errors, a line each.
type lineWriter struct{ logger *slog.Logger }

// Write implements io.Writer.
func (w lineWriter) Write(p []byte) (int, error) {
	w.logger.Error(strings.TrimSpace(string(p)))
	return len(p), nil
}

func endpointSet() bool {
	return os.Getenv("OTEL_SDK_DISABLED") != "true" &&
		(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "")
}

// Shutdown sends the spans that wait, until ctx ends.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	if err := t.shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}

// Traceparent returns the W3C traceparent of the span in ctx; empty when it is not sampled, so that nobody downstream
// pays for a trace that is not kept.
func Traceparent(ctx context.Context) string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() || !sc.IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// WithTraceparent returns ctx with the span that traceparent names as its parent; ctx itself when traceparent is empty
// or cannot be read.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
}

// LinkTo links a new span to the span that traceparent names; it does nothing when traceparent is empty.
func LinkTo(traceparent string) trace.SpanStartOption {
	sc := trace.SpanContextFromContext(WithTraceparent(context.Background(), traceparent))
	if !sc.IsValid() {
		return trace.WithLinks()
	}
	return trace.WithLinks(trace.Link{SpanContext: sc})
}
