// Package telemetry provides the logger and the tracer of each process, and propagates trace contexts between
// processes. A change gets its trace when configmux first sees it. The traceparent is in each message, on sandboxes and
// containers as an annotation, and in each call to the runtime.
//
// Log lines are for people who read them one by one: their keys are short words (pod, container, reason). Spans are for
// tools that know OpenTelemetry's semantic conventions: their attributes have the names of the conventions, or names
// under "quartet." where there are none. Both are in attributes.go, side by side. A log line within a span has its
// trace_id and span_id.
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

	"github.com/quartet-node/quartet/internal/logging"
)

// scope is the instrumentation scope of all of Quartet's spans.
const scope = "github.com/quartet-node/quartet"

// Config describes the process.
type Config struct {
	// Service is the name of the process: service.name of its spans, "service" of its log lines.
	Service string
	// Version is the version of the build: service.version.
	Version string
	// Node is the node's name: k8s.node.name. It is omitted if empty.
	Node string
	// Logging is the format and the verbosity of the log lines.
	Logging logging.Config
	// Output receives the log lines; standard error if nil.
	Output io.Writer
	// Export is the destination of traces if no OTEL variable sets one; nil for none.
	Export *Export
}

// Export is the tracing section of a KubeletConfiguration. OpenTelemetry's variables override each of its fields.
type Export struct {
	// Endpoint is the gRPC address of the OTLP receiver, for example "localhost:4317". The connection has no TLS.
	Endpoint string
	// SampledPerMillion is the number of sampled traces per million that this process begins. The decision of a caller
	// takes precedence.
	SampledPerMillion int32
}

// Telemetry holds the logger and the tracer of a process.
type Telemetry struct {
	// Logger writes log lines. It is also slog's default.
	Logger *slog.Logger
	// Tracer creates spans; they are discarded and cost nothing if no endpoint is set.
	Tracer   trace.Tracer
	shutdown func(context.Context) error
}

// Setup creates the telemetry of a process. Spans are exported by OTLP over gRPC if OTEL_EXPORTER_OTLP_ENDPOINT,
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or cfg.Export is set; the standard OTEL variables configure the export and the
// sampling. It does not wait for the endpoint, which may be unreachable. It fails if the variables are invalid.
func Setup(ctx context.Context, cfg Config) (*Telemetry, error) {
	if cfg.Output == nil {
		cfg.Output = os.Stderr
	}
	output := &watched{to: cfg.Output}
	verbosity := logging.NewVerbosity(cfg.Logging.Verbosity)
	handler := withTraceIDs{cfg.Logging.HandlerWith(output, verbosity), output, verbosity}
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
	// gRPC would look up the service config of the receiver in DNS first, and a machine without DNS would wait ten seconds
	// for that: longer than the timeout of a batch of spans.
	otlp, err := otlptracegrpc.New(
		ctx,
		append(to.client, otlptracegrpc.WithDialOption(grpc.WithDisableServiceConfig()))...)
	if err != nil {
		return nil, fmt.Errorf(
			"make the OTLP trace exporter from the OTEL_EXPORTER_OTLP_* variables and the configured endpoint: %w",
			err,
		)
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

// resourceOf describes the process. OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME take precedence. It fails if the
// former is invalid.
func resourceOf(ctx context.Context, cfg Config) (*resource.Resource, error) {
	attrs := []attribute.KeyValue{
		semconv.ServiceName(cfg.Service), semconv.ServiceNamespace("quartet"), semconv.ServiceVersion(cfg.Version),
		// A restarted process is another instance.
		semconv.ServiceInstanceID(uuid.NewString()), semconv.ProcessPID(os.Getpid()),
	}
	if cfg.Node != "" {
		attrs = append(attrs, semconv.K8SNodeName(cfg.Node))
	}
	res, err := resource.New(
		ctx,
		resource.WithTelemetrySDK(),
		resource.WithHost(),
		resource.WithAttributes(attrs...),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES, a list of key=value: %w", err)
	}
	return res, nil
}

// Tracing reports whether instrumentation that uses OpenTelemetry's global tracer is worth its cost: false after Setup
// has found no destination for traces.
func Tracing() bool {
	_, off := otel.GetTracerProvider().(noop.TracerProvider)
	return !off
}

// destination is the endpoint of traces and their sampling.
type destination struct {
	// endpoint is the address of the receiver; empty for none.
	endpoint string
	client   []otlptracegrpc.Option
	provider []sdktrace.TracerProviderOption
}

// samplingScale is the unit of SampledPerMillion.
const samplingScale = 1_000_000

// destinationOf returns the destination of traces. OpenTelemetry's variables take precedence over the configuration,
// one by one.
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

// RouteLibraryLogs redirects the logs of Kubernetes' libraries and gRPC to the logger. Their loggers are globals that
// must not be set while they are in use, so main calls this first after Setup.
func (t *Telemetry) RouteLibraryLogs() {
	klog.SetSlogLogger(t.Logger.With("from", "kubernetes"))
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, lineWriter{t.Logger.With("from", "grpc")}))
}

// lineWriter logs each line that is written to it as an error.
type lineWriter struct{ logger *slog.Logger }

// Write implements io.Writer.
func (w lineWriter) Write(p []byte) (int, error) {
	w.logger.Error(strings.TrimSpace(string(p)))
	return len(p), nil
}

// Shutdown exports the remaining spans until ctx ends. It fails if some are lost.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	if err := t.shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}
