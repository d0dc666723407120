package apiclient_test

import (
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// TestARequestWithinASpanCarriesItsTrace checks that a request outside of any span, such as that of a watch, carries
// none.
func TestARequestWithinASpanCarriesItsTrace(t *testing.T) {
	// the propagator of a process
	if _, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "nodestatus"}); err != nil {
		t.Fatal(err)
	}
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	t.Cleanup(func() { otel.SetTracerProvider(before) })

	url, dir, requests := server(t)
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: write(t, "server: '"+url+"', certificate-authority: "+dir+"/ca.crt", "token: "+secret),
		Service:    nodeconfig.NodeStatus, QPS: -1, ContentType: "application/json",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	get := func(ctx context.Context) string {
		t.Helper()
		if err := client.Core.Get().Resource("nodes").Name("node-1").Do(ctx).Error(); err != nil {
			t.Fatal(err)
		}
		return (<-requests).Header.Get("Traceparent")
	}
	if got := get(t.Context()); got != "" || len(spans.Ended()) != 0 {
		t.Errorf("a request outside of any span has the traceparent %q and %d spans", got, len(spans.Ended()))
	}
	ctx, span := provider.Tracer("test").Start(t.Context(), "work")
	got := get(ctx)
	span.End()
	if id := span.SpanContext().TraceID().String(); !strings.Contains(got, id) {
		t.Errorf("a request within the trace %s has the traceparent %q", id, got)
	}
	ended := spans.Ended()
	if len(ended) != 2 || ended[0].Name() != "HTTP GET" || ended[0].Parent().SpanID() != span.SpanContext().SpanID() ||
		!strings.Contains(got, ended[0].SpanContext().SpanID().String()) {
		t.Errorf("spans are %v, want the request below the work", ended)
	}
}
