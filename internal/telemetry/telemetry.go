// Package telemetry gives each process its logger and its tracer, and carries trace contexts in the messages between
// processes: a change gets its trace when configmux first sees it, the traceparent travels inside each message and on
// sandboxes and containers as an annotation, and goes to the runtime with each call.
//
// Log lines are for people who read them one by one: their keys are short words (pod, container, reason). Spans are for
// tools that know OpenTelemetry's semantic conventions: their attributes have the names of those, and names under
// "quartet." where there is none. Both are in attributes.go, side by side. A log line that is written within a span has
// its trace_id and span_id.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// scope is the instrumentation scope of all of Quartet's spans.
const scope = "github.com/quartet-node/quartet"

// Config says whose telemetry it is.
type Config struct {
	// Service is the name of the process: service.name of its spans, "service" of its log lines.
	Service string
	// Version is what was built: service.version.
	Version string
	// Node is the node's name: k8s.node.name. It is left out when empty.
	Node string
	Logging
	// Output gets the log lines; the standard error stream when nil.
	Output io.Writer
	// Export is where traces go when no OTEL variable says so; nil for nowhere.
	Export *Export
}

// Export is the tracing section of a KubeletConfiguration. Each of its fields counts only where OpenTelemetry's variables are silent.
type Export struct {
	// Endpoint is the OTLP receiver as gRPC names it, for example "localhost:4317". The connection has no TLS.
	Endpoint string
	// SampledPerMillion is how many of a million traces that this process begins are kept. The decision of a caller wins.
	SampledPerMillion int32
}

// Telemetry is what a process logs and traces with.
type Telemetry struct {
	// Logger writes lines. It is also slog's default.
	Logger *slog.Logger
	// Tracer makes spans; they go nowhere and cost nothing when no endpoint is set.
	Tracer   trace.Tracer
	shutdown func(context.Context) error
}

// Setup makes the telemetry of a process. Spans are sent by OTLP over gRPC when OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, or cfg.Export is; the standard OTEL variables say how, and which traces are kept. It
// does not wait for the endpoint, which may come and go. It fails when the variables cannot be understood.
func Setup(ctx context.Context, cfg Config) (*Telemetry, error) {
	if cfg.Output == nil {
		cfg.Output = os.Stderr
	}
	output := &watched{to: cfg.Output}
	handler := withTraceIDs{cfg.Handler(output), output}
	logger := slog.New(handler).With("service", cfg.Service)
	slog.SetDefault(logger)
	otel.SetErrorHandler(newQuietHandler(logger, time.Now))
	otel.SetLogger(logr.Discard())
	otel.SetTextMapPropagator(propagation.TraceContext{})

	t := &Telemetry{Logger: logger, Tracer: Off(), shutdown: func(context.Context) error { return nil }}
	to := destinationOf(cfg.Export)
	if to.endpoint == "" {
		otel.SetTracerProvider(noop.NewTracerProvider())
		return t, nil
	}
	res, err := resourceOf(ctx, cfg)
	if err != nil {
		return nil, err
	}
	// gRPC would ask the name servers for settings of the receiver first, and a machine that cannot reach any would wait ten
	// seconds for that: longer than a batch of spans has.
	otlp, err := otlptracegrpc.New(ctx, append(to.client, otlptracegrpc.WithDialOption(grpc.WithDisableServiceConfig()))...)
	if err != nil {
		return nil, fmt.Errorf("make the OTLP trace exporter from the OTEL_EXPORTER_OTLP_* variables and the configured endpoint: %w", err)
	}
	exporter := newExporter(otlp, to.endpoint, logger, time.Now)
	provider := sdktrace.NewTracerProvider(append(to.provider,
		sdktrace.WithResource(res), sdktrace.WithSpanProcessor(dropIdle{sdktrace.NewBatchSpanProcessor(exporter)}))...)
	otel.SetTracerProvider(provider)
	t.Tracer = provider.Tracer(scope)
	t.shutdown = func(ctx context.Context) error {
		err := provider.Shutdown(ctx)
		return errors.Join(err, exporter.end())
	}
	return t, nil
}

// resourceOf describes the process. What OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say wins. It fails when the former
// cannot be read.
func resourceOf(ctx context.Context, cfg Config) (*resource.Resource, error) {
	attrs := []attribute.KeyValue{
		semconv.ServiceName(cfg.Service), semconv.ServiceNamespace("quartet"), semconv.ServiceVersion(cfg.Version),
		// A process that is started again is another instance.
		semconv.ServiceInstanceID(uuid.NewString()), semconv.ProcessPID(os.Getpid()),
	}
	if cfg.Node != "" {
		attrs = append(attrs, semconv.K8SNodeName(cfg.Node))
	}
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(attrs...), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES, a list of key=value: %w", err)
	}
	return res, nil
}

// Tracing tells whether instrumentation that takes the process's tracer from OpenTelemetry's globals is worth its cost: it is
// not once Setup has found that there is nowhere to send traces to.
func Tracing() bool {
	_, off := otel.GetTracerProvider().(noop.TracerProvider)
	return !off
}

// destination is where traces go, and which of them.
type destination struct {
	// endpoint names the receiver; empty for none.
	endpoint string
	client   []otlptracegrpc.Option
	provider []sdktrace.TracerProviderOption
}

// samplingScale is what SampledPerMillion is counted in.
const samplingScale = 1_000_000

// destinationOf returns where traces go. OpenTelemetry's variables win over the configuration, one by one.
func destinationOf(configured *Export) destination {
	var d destination
	if os.Getenv("OTEL_SDK_DISABLED") == "true" || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return d
	}
	d.endpoint = cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if configured == nil {
		return d
	}
	if d.endpoint == "" {
		d.endpoint = configured.Endpoint
		d.client = append(d.client, otlptracegrpc.WithEndpoint(configured.Endpoint), otlptracegrpc.WithInsecure())
	}
	if os.Getenv("OTEL_TRACES_SAMPLER") == "" {
		share := float64(configured.SampledPerMillion) / samplingScale
		d.provider = append(d.provider, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(share))))
	}
	return d
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

// Shutdown sends the spans that wait, until ctx ends. It fails when some are lost.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	if err := t.shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}
