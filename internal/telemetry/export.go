package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// exporter exports spans and logs failures. The queue before it is bounded and drops spans when it is full, so that an
// unreachable endpoint costs bounded memory and delays no caller.
type exporter struct {
	sdktrace.SpanExporter
	endpoint string
	logger   *slog.Logger
	limit    limiter
	// ended cancels an export in progress when nothing waits for it any more.
	ended  context.Context //nolint:containedctx // it is the exporter's own life
	cancel context.CancelFunc

	mu sync.Mutex
	// lost is the number of spans that were not accepted since the last success.
	lost int
}

func newExporter(next sdktrace.SpanExporter, endpoint string, logger *slog.Logger, now func() time.Time) *exporter {
	ended, cancel := context.WithCancel(context.Background())
	return &exporter{
		SpanExporter: next,
		endpoint:     redact(endpoint),
		logger:       logger,
		limit:        limiter{now: now},
		ended:        ended,
		cancel:       cancel,
	}
}

// ExportSpans implements sdktrace.SpanExporter. It always succeeds because it logs failures itself.
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
			e.logger.Warn("traces are lost because the endpoint does not accept them; check that an OTLP receiver listens there for gRPC (usually port 4317), not HTTP (usually port 4318)",
				"endpoint", e.endpoint, "lost", e.lost, KeyError, err)
		}
	case e.lost > 0:
		e.logger.Info("traces are accepted again", "endpoint", e.endpoint, "lost", e.lost)
		e.lost = 0
	}
	return nil
}

// end stops an export in progress. It fails if the last spans were not accepted.
func (e *exporter) end() error {
	e.cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost > 0 {
		return fmt.Errorf("%s did not accept %d spans", e.endpoint, e.lost)
	}
	return nil
}

// dropIdle drops the spans that Idle has marked.
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
