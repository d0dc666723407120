package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// exporter sends spans, and says so when nobody takes them. The queue before it is bounded and drops what does not fit, so
// that an endpoint that is away, or hangs, costs its memory and no time of anybody's.
type exporter struct {
	sdktrace.SpanExporter
	endpoint string
	logger   *slog.Logger
	limit    limiter
	// ended ends what is being sent when nobody waits for it any more.
	ended  context.Context //nolint:containedctx // it is the exporter's own life
	cancel context.CancelFunc

	mu sync.Mutex
	// lost is how many spans were not taken since the last that were.
	lost int
}

func newExporter(next sdktrace.SpanExporter, endpoint string, logger *slog.Logger, now func() time.Time) *exporter {
	ended, cancel := context.WithCancel(context.Background())
	return &exporter{SpanExporter: next, endpoint: redact(endpoint), logger: logger, limit: limiter{now: now}, ended: ended, cancel: cancel}
}

// ExportSpans implements sdktrace.SpanExporter. It always succeeds: what is wrong has been told.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ended, cancel)()
	err := e.SpanExporter.ExportSpans(ctx, spans)

	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err != nil:
		e.lost += len(spans)
		if e.ended.Err() == nil && e.limit.pass() {
			e.logger.Warn("traces are lost: nobody takes them; check that an OTLP receiver listens there and speaks gRPC, as on port 4317, not HTTP, as on 4318",
				"endpoint", e.endpoint, "lost", e.lost, KeyError, err)
		}
	case e.lost > 0:
		e.logger.Info("traces are taken again", "endpoint", e.endpoint, "lost", e.lost)
		e.lost = 0
	}
	return nil
}

// end ends what is still being sent. It fails when the last spans were not taken.
func (e *exporter) end() error {
	e.cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost > 0 {
		return fmt.Errorf("%s did not take %d spans", e.endpoint, e.lost)
	}
	return nil
}

// dropIdle leaves out the spans that Idle was said of.
type dropIdle struct{ sdktrace.SpanProcessor }

// OnEnd implements sdktrace.SpanProcessor.
func (p dropIdle) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.Parent().IsValid() {
		for _, a := range s.Attributes() {
			if a.Key == attrIdle {
				return
			}
		}
	}
	p.SpanProcessor.OnEnd(s)
}
