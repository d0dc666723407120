package watchdog

import (
	"context"
	"log/slog"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/logging"
)

const (
	// DefaultPatience is how long a process may stand still before it is ended.
	DefaultPatience = 30 * time.Second
	// askPeriod is the interval of questions.
	askPeriod = 5 * time.Second
	// lastWords is the time that a process has to log its goroutines.
	lastWords = 5 * time.Second
)

// Guard ends a child process that stands still.
type Guard struct {
	// Name is the name of the process in the log.
	Name string
	// Ask returns why the process stands still; nil while it works. See systemd.Listener.
	Ask func(ctx context.Context) error
	// Signal sends a signal to the process. It fails when the process has ended.
	Signal func(signal syscall.Signal) error
	// Patience is how long the process may stand still.
	Patience time.Duration
	Clock    clock.Clock
	// Logger must not wait for the reader of the log, which may be why the process stands still: see package logqueue.
	Logger *slog.Logger
}

// Run asks the process in each period until ctx ends, which is when the process has ended. A process that has been
// standing still for the patience is ended: SIGQUIT lets a Go program log its goroutines, and SIGKILL follows.
func (g *Guard) Run(ctx context.Context) {
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.Clock.After(askPeriod):
		}
		asked := g.Clock.Now()
		err := g.Ask(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			since = time.Time{}
			continue
		case since.IsZero():
			since = asked
			g.Logger.WarnContext(ctx, "a process of the node stands still; it is ended if that goes on",
				"process", g.Name, "patience", g.Patience, logging.KeyError, err)
		}
		if stood := g.Clock.Since(since); stood >= g.Patience {
			g.Logger.ErrorContext(ctx, "a process of the node stands still; it logs its goroutines and is ended, which stops no pod",
				"process", g.Name, "for", stood.Round(time.Second), logging.KeyError, err)
			g.end(ctx)
			return
		}
	}
}

// end ends the process. SIGCONT lets a stopped process receive SIGQUIT.
func (g *Guard) end(ctx context.Context) {
	if g.Signal(syscall.SIGQUIT) != nil || g.Signal(syscall.SIGCONT) != nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-g.Clock.After(lastWords):
		_ = g.Signal(syscall.SIGKILL) // it fails only if the process has ended
	}
}
