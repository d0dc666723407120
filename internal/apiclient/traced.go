package apiclient

import (
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/trace"
)

// traced creates a client span for each request made within a span, and sends its traceparent. Requests outside of a
// span, such as watches, which may last for minutes, are passed on unchanged.
type traced struct {
	next, spans http.RoundTripper
}

func newTraced(next http.RoundTripper) traced {
	return traced{next: next, spans: otelhttp.NewTransport(next,
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return "HTTP " + r.Method }))}
}

// RoundTrip implements http.RoundTripper.
func (t traced) RoundTrip(request *http.Request) (*http.Response, error) {
	if !trace.SpanContextFromContext(request.Context()).IsValid() {
		return t.next.RoundTrip(request)
	}
	return t.spans.RoundTrip(request)
}

// WrappedRoundTripper gives access to the transport below, so that idle connections can be closed.
func (t traced) WrappedRoundTripper() http.RoundTripper { return t.next }
