package kubeletapi

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func TestWhatIsDoneInAPodIsASpanOfTheClientsTrace(t *testing.T) {
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	r := newRig(t)
	spans := tracetest.NewSpanRecorder()
	r.cfg.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	api := Node(r.cfg)
	defer api.Close()
	for path, want := range map[string]string{
		"POST /exec/default/web/main?command=hunter2&output=1": "api.exec", "POST /attach/default/web/main?output=1": "api.attach",
		"POST /portForward/default/web?port=80": "api.portForward", "POST /run/default/web/main?cmd=hunter2": "api.run",
		"GET /containerLogs/default/web/main": "api.containerLogs",
	} {
		method, target, _ := strings.Cut(path, " ")
		request := httptest.NewRequestWithContext(t.Context(), method, target, nil)
		request.Header.Set("Traceparent", "00-"+traceID+"-b7ad6b7169203331-01")
		request.Header.Set("Upgrade", "SPDY/3.1")
		spans.Reset()
		api.ServeHTTP(httptest.NewRecorder(), request)
		ended := spans.Ended()
		if len(ended) != 1 {
			t.Errorf("%s: %d spans, want 1", path, len(ended))
			continue
		}
		span := ended[0]
		if span.Name() != want || span.SpanContext().TraceID().String() != traceID || span.Status().Code != codes.Error {
			t.Errorf("%s: span %q of trace %s with status %v, want a failed %q of the client's", path, span.Name(), span.SpanContext().TraceID(), span.Status(), want)
		}
		if text := fmt.Sprint(span.Attributes(), span.Events(), span.Status()); strings.Contains(text, "hunter2") ||
			!strings.Contains(text, "web") {
			t.Errorf("%s: the span says %s, want text without %q and with %q", path, text, "hunter2", "web")
		}
	}
	spans.Reset()
	api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/pods", nil))
	if got := spans.Ended(); len(got) != 0 {
		t.Errorf("a read is %d spans, want none", len(got))
	}
}
