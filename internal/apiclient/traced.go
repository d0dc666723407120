package apiclient

import (
	"net/http"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/trace"
)

// traced gives each request that is made within a span a client span of its own, and the request its traceparent. Requests outside
// of any span, such as watches, which may last for minutes, pass as they are.
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

// WrappedRoundTripper lets idle connections be found and closed.
func (t traced) WrappedRoundTripper() http.RoundTripper { return t.next }
