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

	"github.com/quartet-node/quartet/internal/logging"
)

// withTraceIDs adds the IDs of the current span to a line, as OpenTelemetry specifies for text logs: lower-case
// hexadecimal under trace_id and span_id. Lines of traces that are not sampled have them too, because they still belong
// together.
type withTraceIDs struct {
	slog.Handler

	output    *watched
	verbosity *logging.Verbosity
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
	return withTraceIDs{h.Handler.WithAttrs(attrs), h.output, h.verbosity}
}

// WithGroup implements slog.Handler.
func (h withTraceIDs) WithGroup(name string) slog.Handler {
	return withTraceIDs{h.Handler.WithGroup(name), h.output, h.verbosity}
}

// VerbosityOf returns the verbosity of a logger of Setup. That of another logger is 0, and a change has no effect.
func VerbosityOf(logger *slog.Logger) *logging.Verbosity {
	if h, ok := logger.Handler().(withTraceIDs); ok {
		return h.verbosity
	}
	return logging.NewVerbosity(0)
}

// watched records the start of a write to the log.
type watched struct {
	to io.Writer
	// since is the start of the present write; nil if there is none. A handler of slog writes one line at a time. The time
	// keeps its monotonic reading, because the wall clock may be set meanwhile.
	since atomic.Pointer[time.Time]
}

// Write implements io.Writer.
func (w *watched) Write(p []byte) (int, error) {
	now := time.Now()
	w.since.Store(&now)
	defer w.since.Store(nil)
	return w.to.Write(p)
}

// blockedAfter is the time after which a write to the log counts as blocked. A reader of a pipe usually empties it much
// faster.
const blockedAfter = time.Minute

// LogBlocked returns an error if a line for a logger of Setup has not been written for a minute: the reader of the
// process's standard error does not read, and everything that logs is blocked.
func LogBlocked(logger *slog.Logger) error {
	h, ok := logger.Handler().(withTraceIDs)
	if !ok {
		return nil
	}
	since := h.output.since.Load()
	if since == nil {
		return nil
	}
	if took := time.Since(*since); took > blockedAfter {
		return fmt.Errorf(
			"a line of the log has not been written for %s: check the reader of the standard error stream of the process",
			took.Round(time.Second),
		)
	}
	return nil
}

// complaintPeriod is the minimum time between two lines about the same problem with traces.
const complaintPeriod = time.Minute

// limiter permits one event in each complaintPeriod.
type limiter struct {
	now func() time.Time

	mu   sync.Mutex
	last time.Time
}

// pass reports whether an event is permitted.
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

// quietHandler logs errors of the tracing library at a limited rate. It implements otel.ErrorHandler.
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
