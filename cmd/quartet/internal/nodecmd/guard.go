package nodecmd

import (
	"context"
	"log/slog"
	"os"
	"syscall"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
)

// guard returns the Guard of a supervised process; nil without --stuck-timeout.
func (o Options) guard(address, name string, logger *slog.Logger) func(context.Context, *os.Process) {
	if o.StuckTimeout <= 0 {
		return nil
	}
	return func(ctx context.Context, process *os.Process) {
		asker, err := watchdog.NewAsker(address)
		if err != nil {
			logger.WarnContext(ctx, "a process is not watched", "process", name, telemetry.KeyError, err)
			return
		}
		defer func() { _ = asker.Close() }() // nothing follows from it
		(&watchdog.Guard{
			Name: name, Patience: o.StuckTimeout, Clock: clock.RealClock{}, Logger: logger,
			Ask:    func(ctx context.Context) error { return asker.Ask(ctx, process.Pid) },
			Signal: func(signal syscall.Signal) error { return process.Signal(signal) },
		}).Run(ctx)
	}
}
