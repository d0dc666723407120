package podworkers_test

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// counter is a log handler that counts warnings and errors and discards them.
type counter struct{ warnings *atomic.Int64 }

// Enabled implements slog.Handler.
func (counter) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements slog.Handler.
func (c counter) Handle(context.Context, slog.Record) error {
	c.warnings.Add(1)
	return nil
}

// WithAttrs implements slog.Handler.
func (c counter) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements slog.Handler.
func (c counter) WithGroup(string) slog.Handler { return c }
