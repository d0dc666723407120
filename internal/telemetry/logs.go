package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// withTraceIDs adds the ids of the span that a line is written in, as OpenTelemetry wants them in text logs: lower-case
// hexadecimal under trace_id and span_id. Lines of a trace that is not kept have them too: they still belong together.
type withTraceIDs struct{ slog.Handler }

// Handle implements slog.Handler.
func (h withTraceIDs) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r.AddAttrs(slog.String(KeyTraceID, sc.TraceID().String()), slog.String(KeySpanID, sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h withTraceIDs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return withTraceIDs{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h withTraceIDs) WithGroup(name string) slog.Handler {
	return withTraceIDs{h.Handler.WithGroup(name)}
}

// complaintPeriod separates two lines about the same trouble with traces.
const complaintPeriod = time.Minute

// limiter lets one through each complaintPeriod.
type limiter struct {
	now func() time.Time

	mu   sync.Mutex
	last time.Time
}

// pass tells whether it is time again.
func (l *limiter) pass() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if !l.last.IsZero() && now.Sub(l.last) < complaintPeriod {
		return false
	}
	l.last = now
	return true
}

// quietHandler logs what the tracing library complains of, now and then. It implements otel.ErrorHandler.
type quietHandler struct {
	logger *slog.Logger
	limit  limiter
}

func newQuietHandler(logger *slog.Logger, now func() time.Time) *quietHandler {
	return &quietHandler{logger: logger, limit: limiter{now: now}}
}

// Handle implements otel.ErrorHandler.
func (h *quietHandler) Handle(err error) {
	if h.limit.pass() {
		h.logger.Warn("tracing does not work as it should; check the OTEL_ variables of the process", KeyError, err)
	}
}
