package kubeletapi

import (
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// traced gives each request for a pod a server span, "api." and the path, in the trace of the client if that has one.
// The span lasts as long as the stream. It never has the query: a command there may contain secrets.
func (n *node) traced(path string, handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := telemetry.Start(ctx, n.Tracer, "api."+path, telemetry.Subject{
			Namespace: r.PathValue("namespace"), Pod: r.PathValue("pod"), UID: r.PathValue("uid"),
			Container: r.PathValue("container"),
		}, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		handler(w, r.WithContext(ctx))
	}
}
