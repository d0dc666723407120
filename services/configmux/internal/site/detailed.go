package site

import (
	"context"
	"log/slog"
)

// detailed returns a logger whose lines are details, whatever their level: those of one node of many. The errors of a
// node are in `quartet get sources`, and failed requests are logged once for all nodes.
func detailed(logger *slog.Logger) *slog.Logger { return slog.New(details{logger.Handler()}) }

// details is a handler that lowers each level to that of details.
type details struct{ slog.Handler }

// Enabled implements slog.Handler.
func (d details) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (d details) Handle(ctx context.Context, r slog.Record) error {
	r.Level = min(r.Level, slog.LevelDebug)
	return d.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (d details) WithAttrs(attrs []slog.Attr) slog.Handler {
	return details{d.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (d details) WithGroup(name string) slog.Handler { return details{d.Handler.WithGroup(name)} }
