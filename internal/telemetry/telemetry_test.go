package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/otlpsink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setUp returns the telemetry of a process with environment variables, by name and value.
func setUp(t *testing.T, cfg telemetry.Config, env ...string) *telemetry.Telemetry {
	t.Helper()
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	for i := 0; i < len(env); i += 2 {
		t.Setenv(env[i], env[i+1])
	}
	tel, err := telemetry.Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

func TestWithoutAnEndpointNothingIsTraced(t *testing.T) {
	for name, env := range map[string][]string{
		"none":       {"OTEL_EXPORTER_OTLP_ENDPOINT", ""},
		"turned off": {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "OTEL_SDK_DISABLED", "true"},
		"no export":  {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			tel := setUp(t, telemetry.Config{Service: "pleg"}, env...)
			ctx, span := tel.Tracer.Start(t.Context(), "work")
			defer span.End()
			if span.IsRecording() || telemetry.Traceparent(ctx) != "" || telemetry.Tracing() {
				t.Error("a span is recorded although there is nowhere to send it")
			}
			if err := tel.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A process that exports nothing still passes the trace context on.
func TestWithoutAnEndpointATraceGoesThrough(t *testing.T) {
	const traceparent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	ctx, span := telemetry.Start(
		telemetry.WithTraceparent(t.Context(), traceparent),
		telemetry.Off(),
		"work",
		telemetry.Subject{},
	)
	span.End()
	if got := telemetry.Traceparent(ctx); got != traceparent {
		t.Errorf("the traceparent is %q behind the process, want %q", got, traceparent)
	}
}

func TestSpansArriveWithTheirService(t *testing.T) {
	sink := otlpsink.Start(t)
	tel := setUp(
		t,
		telemetry.Config{Service: "configmux", Version: "v1.2.3", Node: "node-1"},
		"OTEL_EXPORTER_OTLP_ENDPOINT",
		sink.Endpoint(),
	)
	parent, span := tel.Tracer.Start(t.Context(), "source.read")
	_, child := tel.Tracer.Start(telemetry.WithTraceparent(context.Background(), telemetry.Traceparent(parent)), "merge")
	child.End()
	span.End()
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := sink.Spans()
	if len(spans) != 2 {
		t.Fatalf("%d spans arrived, want 2", len(spans))
	}
	for _, s := range spans {
		if s.Name == "merge" && s.ParentID != span.SpanContext().SpanID().String() {
			t.Errorf("merge has the parent %s, want the span whose traceparent it was given", s.ParentID)
		}
		host, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]string{
			"service.name": "configmux", "service.namespace": "quartet", "service.version": "v1.2.3", "k8s.node.name": "node-1",
			"host.name": host, "process.pid": fmt.Sprint(os.Getpid()),
		} {
			if s.Resource[key] != want {
				t.Errorf("resource attribute %s is %q, want %q", key, s.Resource[key], want)
			}
		}
		if len(s.Resource["service.instance.id"]) != 36 {
			t.Errorf("service.instance.id is %q, want a UUID", s.Resource["service.instance.id"])
		}
	}
}

func TestTheEnvironmentsWordOnTheResourceWins(t *testing.T) {
	sink := otlpsink.Start(t)
	tel := setUp(
		t,
		telemetry.Config{Service: "pleg", Node: "node-1"},
		"OTEL_EXPORTER_OTLP_ENDPOINT",
		sink.Endpoint(),
		"OTEL_SERVICE_NAME",
		"edge-pleg",
		"OTEL_RESOURCE_ATTRIBUTES",
		"service.namespace=edge,host.name=rack-7,k8s.node.name=n7,deployment.environment.name=test",
	)
	_, span := tel.Tracer.Start(t.Context(), "work")
	span.End()
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := sink.Spans()[0].Resource
	for key, want := range map[string]string{
		"service.name": "edge-pleg", "service.namespace": "edge", "host.name": "rack-7", "k8s.node.name": "n7", "deployment.environment.name": "test",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
}

func TestAResourceThatCannotBeReadIsRefused(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "nonsense")
	if _, err := telemetry.Setup(
		t.Context(),
		telemetry.Config{Service: "pleg"},
	); err == nil ||
		!strings.Contains(err.Error(), "OTEL_RESOURCE_ATTRIBUTES") {
		t.Errorf("got %v, want an error that names the variable", err)
	}
}

// recorded returns the only span of use.
func recorded(t *testing.T, use func(trace.Tracer)) sdktrace.ReadOnlySpan {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	use(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test"))
	spans := recorder.Ended()
	if len(spans) != 1 {
		t.Fatalf("%d spans, want 1", len(spans))
	}
	return spans[0]
}

func textOf(attrs []attribute.KeyValue) map[string]string {
	text := map[string]string{}
	for _, a := range attrs {
		text[string(a.Key)] = a.Value.String()
	}
	return text
}

func TestASubjectIsNamedByTheConventions(t *testing.T) {
	span := recorded(t, func(tracer trace.Tracer) {
		_, span := telemetry.Start(t.Context(), tracer, "work", telemetry.Subject{
			Namespace: "shop", Pod: "web", UID: "u-1", Container: "app", ContainerID: "c-1", SandboxID: "s-1", Image: "app:1",
		})
		span.End()
	})
	want := map[string]string{
		"k8s.namespace.name": "shop", "k8s.pod.name": "web", "k8s.pod.uid": "u-1", "k8s.container.name": "app",
		"container.id": "c-1", "container.image.name": "app:1", "quartet.sandbox.id": "s-1",
	}
	if diff := cmp.Diff(want, textOf(span.Attributes())); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}

// reasonError is an error with a reason of its own.
type reasonError struct{ error }

func (reasonError) ErrorType() string { return "ErrImagePull" }

func TestAFailureIsRecordedWithItsKind(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		kind string
	}{
		"a gRPC code":       {fmt.Errorf("stop: %w", status.Error(codes.NotFound, "no such container")), "NOT_FOUND"},
		"several":           {errors.Join(status.Error(codes.Unavailable, "away"), errors.New("more")), "UNAVAILABLE"},
		"a reason":          {fmt.Errorf("image: %w", reasonError{status.Error(codes.Unknown, "no route")}), "ErrImagePull"},
		"a deadline":        {fmt.Errorf("ask: %w", context.DeadlineExceeded), "DEADLINE_EXCEEDED"},
		"cut short":         {context.Canceled, "CANCELLED"},
		"another Go error":  {fmt.Errorf("read: %w", &os.PathError{Op: "open", Path: "/x", Err: os.ErrNotExist}), "*fs.PathError"},
		"nothing was wrong": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			span := recorded(t, func(tracer trace.Tracer) {
				_, span := tracer.Start(t.Context(), "work")
				telemetry.End(span, tc.err)
			})
			if got := textOf(span.Attributes())["error.type"]; got != tc.kind {
				t.Errorf("error.type is %q, want %q", got, tc.kind)
			}
			if tc.err == nil {
				if span.Status().Code.String() != "Unset" || len(span.Events()) > 0 {
					t.Errorf("status %v and events %v of a span that did not fail", span.Status(), span.Events())
				}
				return
			}
			if span.Status().Code.String() != "Error" || span.Status().Description != tc.err.Error() {
				t.Errorf("status is %v, want an error with the message", span.Status())
			}
			event := span.Events()[0]
			if event.Name != "exception" || textOf(event.Attributes)["exception.message"] != tc.err.Error() ||
				textOf(event.Attributes)["exception.type"] == "" {
				t.Errorf("event is %v, want the exception", event)
			}
		})
	}
}

func TestWhatIsSecretInAnAddressIsNotRecorded(t *testing.T) {
	for text, want := range map[string]string{
		`Get "https://ann:hunter2@registry.test/v2/": no route`:              `Get "https://…@registry.test/v2/": no route`,
		`fetch https://cdn.test/blob?X-Amz-Signature=hunter2&e=1: forbidden`: `fetch https://cdn.test/blob?… forbidden`,
		`mail ops@example.test about unix:///run/x.sock?`:                    `mail ops@example.test about unix:///run/x.sock?…`,
	} {
		span := recorded(t, func(tracer trace.Tracer) {
			_, span := tracer.Start(t.Context(), "work")
			telemetry.End(span, errors.New(text))
		})
		if span.Status().Description != want || textOf(span.Events()[0].Attributes)["exception.message"] != want {
			t.Errorf("status %q and event %v, want %q", span.Status().Description, span.Events()[0], want)
		}
	}
}

func TestLinesWithinASpanHaveItsIDs(t *testing.T) {
	var out bytes.Buffer
	tel := setUp(t, telemetry.Config{Service: "pleg", Output: &out})
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test")
	ctx, span := tracer.Start(t.Context(), "work")
	tel.Logger.With(telemetry.KeyPod, "shop/web").InfoContext(ctx, "inside")
	tel.Logger.Info("outside")
	slog.InfoContext(ctx, "by the default logger")
	span.End()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	ids := " trace_id=" + span.SpanContext().TraceID().String() + " span_id=" + span.SpanContext().SpanID().String()
	for i, want := range []bool{true, false, true} {
		if strings.HasSuffix(lines[i], ids) != want {
			t.Errorf("line %q: that it has the ids of the span %s is %v, want %v", lines[i], ids, !want, want)
		}
	}
	if !strings.Contains(lines[0], "service=pleg pod=shop/web") {
		t.Errorf("line %q lacks what its logger has", lines[0])
	}
}

func TestIdleSpansAreNotSent(t *testing.T) {
	sink := otlpsink.Start(t)
	tel := setUp(t, telemetry.Config{Service: "syncloop"}, "OTEL_EXPORTER_OTLP_ENDPOINT", sink.Endpoint())
	for _, name := range []string{"looked", "worked"} {
		_, span := tel.Tracer.Start(t.Context(), name)
		if name == "looked" {
			telemetry.Idle(span)
		}
		span.End()
	}
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range sink.Spans() {
		names = append(names, s.Name)
	}
	if diff := cmp.Diff([]string{"worked"}, names); diff != "" {
		t.Errorf("spans that were sent (-want +got):\n%s", diff)
	}
}

func TestLinksPointAtTheSpansOfTheTraceparents(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	dropped := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test")
	started, start := tracer.Start(t.Context(), "container.create")
	notKept, _ := dropped.Start(t.Context(), "container.create")
	ctx, crash := tracer.Start(t.Context(), "lifecycle.event")
	telemetry.LinkTo(
		crash,
		telemetry.Traceparent(started),
		"",
		telemetry.Traceparent(notKept),
		telemetry.Traceparent(ctx),
		"nonsense",
	)
	crash.End()
	links := recorder.Ended()[0].Links()
	if len(links) != 1 || links[0].SpanContext.SpanID() != start.SpanContext().SpanID() {
		text, err := json.Marshal(links)
		t.Errorf("links are %s (%v), want one to the start", text, err)
	}
}
