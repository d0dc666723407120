package telemetry_test

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/otlpsink"
)

func TestWithoutAnEndpointNothingIsTraced(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	tel, err := telemetry.Setup(t.Context(), "pleg", 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, span := tel.Tracer.Start(t.Context(), "work")
	defer span.End()
	if span.IsRecording() || telemetry.Traceparent(ctx) != "" || tel.Provider != nil {
		t.Error("a span is recorded although there is nowhere to send it")
	}
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWithAnEndpointSpansArriveUnderTheServicesName(t *testing.T) {
	sink := otlpsink.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.Endpoint())
	tel, err := telemetry.Setup(t.Context(), "configmux", 0)
	if err != nil {
		t.Fatal(err)
	}
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
		if s.Service != "configmux" {
			t.Errorf("span %s is of service %q", s.Name, s.Service)
		}
		if s.Name == "merge" && s.ParentID != telemetrySpanID(span) {
			t.Errorf("merge has the parent %s, want the span whose traceparent it was given", s.ParentID)
		}
	}
}

func telemetrySpanID(s trace.Span) string { return s.SpanContext().SpanID().String() }

func TestLinkPointsAtTheSpanOfTheTraceparent(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	ctx, start := tracer.Start(t.Context(), "container.start")
	_, crash := tracer.Start(t.Context(), "lifecycle.event", telemetry.LinkTo(telemetry.Traceparent(ctx)), telemetry.LinkTo(""))
	crash.End()
	links := recorder.Ended()[0].Links()
	if len(links) != 1 || links[0].SpanContext.SpanID() != start.SpanContext().SpanID() {
		t.Errorf("links are %+v, want one to the start", links)
	}
}
