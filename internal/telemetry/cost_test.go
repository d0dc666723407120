package telemetry_test

import (
	"context"
	"log/slog"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// phase is the tracing of one phase of work on a pod.
func phase(ctx context.Context, tracer trace.Tracer, namespace, pod, uid, container string) {
	ctx, span := telemetry.Start(
		ctx,
		tracer,
		"container.start",
		telemetry.Subject{Namespace: namespace, Pod: pod, UID: uid, Container: container},
	)
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrRestartCount.Int(3))
		telemetry.LinkTo(span, telemetry.Traceparent(ctx))
	}
	ctx = telemetry.Outgoing(telemetry.WithTraceparent(ctx, telemetry.Traceparent(ctx)))
	telemetry.End(trace.SpanFromContext(ctx), nil)
}

func TestWithoutAnEndpointASpanAllocatesNothing(t *testing.T) {
	tel := setUp(t, telemetry.Config{Service: "syncloop"}, "OTEL_EXPORTER_OTLP_ENDPOINT", "")
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() { phase(ctx, tel.Tracer, "shop", "web", "u-1", "app") }); n != 0 {
		t.Errorf("a phase makes %v allocations when nothing is traced, want none", n)
	}
}

// A span that is not sampled costs its ids and contexts, but no attributes.
func TestASpanThatIsNotKeptMakesNoAttributes(t *testing.T) {
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test")
	ctx := t.Context()
	bare := testing.AllocsPerRun(100, func() {
		_, span := tracer.Start(ctx, "container.start")
		span.End()
	})
	described := testing.AllocsPerRun(100, func() {
		_, span := telemetry.Start(
			ctx,
			tracer,
			"container.start",
			telemetry.Subject{Namespace: "shop", Pod: "web", UID: "u-1", Container: "app"},
		)
		telemetry.End(span, nil)
	})
	if described > bare {
		t.Errorf("a span that is not kept makes %v allocations with a description, %v without", described, bare)
	}
}

// nowhere discards spans, as an exporter.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

// BenchmarkPhase is a phase that only traces: without a tracer, without an endpoint, with an unsampled trace, and with
// a sampled one.
func BenchmarkPhase(b *testing.B) {
	ctx := context.Background()
	b.Run("untraced", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
		}
	})
	dropped := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	kept := sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{}))
	defer func() {
		if err := kept.Shutdown(ctx); err != nil {
			b.Error(err)
		}
	}()
	for _, bm := range []struct {
		name   string
		tracer trace.Tracer
	}{{"off", telemetry.Off()}, {"not kept", dropped.Tracer("")}, {"kept", kept.Tracer("")}} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				phase(ctx, bm.tracer, "shop", "web", "u-1", "app")
			}
		})
	}
}

// BenchmarkLine is a log line outside of any span, and within one.
func BenchmarkLine(b *testing.B) {
	tel, err := telemetry.Setup(b.Context(), telemetry.Config{Service: "pleg", Output: discard{}})
	if err != nil {
		b.Fatal(err)
	}
	traced, span := sdktrace.NewTracerProvider().Tracer("").Start(b.Context(), "work")
	defer span.End()
	for name, ctx := range map[string]context.Context{"outside": b.Context(), "within": traced} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				tel.Logger.LogAttrs(ctx, slog.LevelInfo, "started a container", slog.String(telemetry.KeyPod, "shop/web"))
			}
		})
	}
}

// discard is an output that slog does not recognize, unlike io.Discard.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
