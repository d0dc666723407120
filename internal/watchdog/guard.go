package watchdog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// DefaultPatience is how long a process may stand still before it is ended.
	DefaultPatience = 30 * time.Second
	// askPeriod is the interval of questions.
	askPeriod = 5 * time.Second
	// askTimeout bounds the answer of a process, which needs no I/O.
	askTimeout = 5 * time.Second
	// lastWords is the time that a process has to log its goroutines.
	lastWords = 5 * time.Second
)

// Asker asks a process for its loops.
type Asker struct {
	address string
	conn    *grpc.ClientConn
}

// NewAsker returns an Asker of the process that serves on an address. It fails if the address is malformed.
func NewAsker(address string) (*Asker, error) {
	conn, err := rpc.Dial(address)
	if err != nil {
		return nil, err
	}
	return &Asker{address: address, conn: conn}, nil
}

// Close closes the connection.
func (a *Asker) Close() error { return a.conn.Close() }

// Ask returns why the process with a PID stands still. It is nil for a process that works, and for one that does not
// serve: it is starting, stands by for another one, or has ended.
func (a *Asker) Ask(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request := &grpc_health_v1.HealthCheckRequest{Service: rpc.Loops}
	answer, err := grpc_health_v1.NewHealthClient(a.conn).Check(ctx, request)
	switch {
	case err == nil && answer.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING:
		return nil
	case err == nil:
		err = errors.New("a loop of it stands still")
	case status.Code(err) == codes.NotFound: // an earlier version, which does not check its loops
		return nil
	}
	owner, ownerErr := rpc.ServerOf(a.address)
	switch {
	case errors.Is(ownerErr, syscall.ENOENT), errors.Is(ownerErr, syscall.ECONNREFUSED):
		return nil
	case ownerErr != nil:
		return fmt.Errorf("it takes no connections: %w", ownerErr)
	case owner.PID != pid:
		return nil
	}
	return fmt.Errorf("%s: %w", a.address, err)
}

// Guard ends a child process that stands still.
type Guard struct {
	// Name is the name of the process in the log.
	Name string
	// Ask returns why the process stands still; nil while it works. See Asker.
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
				"process", g.Name, "patience", g.Patience, telemetry.KeyError, err)
		}
		if stood := g.Clock.Since(since); stood >= g.Patience {
			g.Logger.ErrorContext(ctx, "a process of the node stands still; it logs its goroutines and is ended, which stops no pod",
				"process", g.Name, "for", stood.Round(time.Second), telemetry.KeyError, err)
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
