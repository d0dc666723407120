package main

import (
	"context"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/kernellog"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/oom"
)

// watchKills tells which processes the kernel kills for want of memory, until ctx ends or its log cannot be read.
func (e *engine) watchKills(ctx context.Context) error {
	oom.Run(ctx, oom.Config{
		Open: func() (oom.Log, error) { return kernellog.Open(kernellog.Device) },
		File: filepath.Join(e.cfg.StateDir, "oom-told.json"), Boot: e.boot, Now: awake,
		Events: e.events, Logger: e.logger, Metrics: oom.NewMetrics(e.metrics.Registry),
	})
	return nil // without it all else goes on
}

// awake is how long the machine has run since its boot and not slept; 0 when it does not say.
func awake() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}
