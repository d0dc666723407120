package service

import (
	"context"
	"log/slog"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/internal/watchdog"
)

// Watch checks the loops of a process until ctx ends. A loop that stands still is in the process's health and log, and
// systemd gets no message of the watchdog; so the parent of the process ends it.
func Watch(
	ctx context.Context, notifier systemd.Notifier, logger *slog.Logger, health *rpc.Health, loops ...watchdog.Loop,
) error {
	return watchdog.New(watchdog.Config{
		Loops: loops, Changed: health.SetStuck, Alive: func() { notifier.Alive(logger) },
		Clock: clock.RealClock{}, Logger: logger,
	}).Run(ctx)
}
