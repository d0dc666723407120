package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// withTraceIDs adds the ids of the span that a line is written in, as OpenTelemetry wants them in text logs: lower-case
// hexadecimal under trace_id and span_id. Lines of a trace that is not kept have them too: they still belong together.
type withTraceIDs struct {
	slog.Handler

	output *watched
}

// Handle implements slog.Handler.
func (h withTraceIDs) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r.AddAttrs(slog.String(KeyTraceID, sc.TraceID().String()), slog.String(KeySpanID, sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h withTraceIDs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return withTraceIDs{h.Handler.WithAttrs(attrs), h.output}
}

// WithGroup implements slog.Handler.
func (h withTraceIDs) WithGroup(name string) slog.Handler {
	return withTraceIDs{h.Handler.WithGroup(name), h.output}
}

// watched knows since when a write to the log is under way.
type watched struct {
	to io.Writer
	// since is when it began, in nanoseconds since 1970; 0 while there is none. A handler of slog writes one line after the other.
	since atomic.Int64
}

// Write implements io.Writer.
func (w *watched) Write(p []byte) (int, error) {
	w.since.Store(time.Now().UnixNano())
	defer w.since.Store(0)
	return w.to.Write(p)
}

// blockedAfter is how long a write to the log may take. Whoever reads a pipe empties it in less.
const blockedAfter = time.Minute

// LogBlocked returns an error while a line that was given to a logger of Setup's has not been written for a minute: what reads the
// standard error stream of the process does not read, and everything that logs waits.
func LogBlocked(logger *slog.Logger) error {
	h, ok := logger.Handler().(withTraceIDs)
	if !ok {
		return nil
	}
	since := h.output.since.Load()
	if since == 0 {
		return nil
	}
	if took := time.Since(time.Unix(0, since)); took > blockedAfter {
		return fmt.Errorf("a line of the log has not been written for %s: see what reads the standard error stream of the process", took.Round(time.Second))
	}
	return nil
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
