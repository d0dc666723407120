package cri

import (
	"context"
	"log/slog"
	"testing"
)

// TestTheEndOfTheCallerDoesNotInterruptTheBuilder, which leaks its connection and goroutines when it fails.
func TestTheEndOfTheCallerDoesNotInterruptTheBuilder(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	s := newSlot("unix:///run/runtime.sock", "runtime service", slog.New(slog.DiscardHandler),
		func(context.Context) error {
			end() // the process ends while the runtime answers
			return nil
		},
		func(ctx context.Context) (string, error) { return "connected", ctx.Err() },
	)
	if service, err := s.get(ctx); err != nil || service != "connected" {
		t.Errorf("get() = %q, %v, want a service that can be closed", service, err)
	}
}
