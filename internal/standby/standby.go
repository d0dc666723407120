// Package standby lets a second process of a service wait for the first one's end, and take over. The lock in the state
// directory decides who works: the kernel gives it up when its holder ends, however it ends.
//
// A process that stands by serves nothing where the service is served. So that its own health can be asked all the same,
// also where the two share their directories and nothing else, it answers grpc.health.v1 on a socket without a file,
// which only processes of its own container find: [Ask].
package standby

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// pollInterval is how often the lock is tried. The kernel tells nobody that a lock of this kind has come free.
const pollInterval = 100 * time.Millisecond

// waitLock is what a standby waits for, as grpc.health.v1 names it.
const waitLock = "lock"

// Config says what to wait for.
type Config struct {
	// StateDir has the lock.
	StateDir string
	// Service is whose lock it is.
	Service layout.Service
	// Clock times the tries.
	Clock clock.Clock
	// Logger is told who holds the lock, and when it is taken over.
	Logger *slog.Logger
}

// Lock takes the lock of a service, as statedir.Lock does, and waits while another process has it. It fails when the lock
// cannot be tried at all, and with the error of ctx when that ends first.
func Lock(ctx context.Context, cfg Config) (*statedir.Held, error) {
	self := statedir.Self(string(cfg.Service))
	held, err := statedir.LockAs(cfg.StateDir, self)
	var other *statedir.HeldError
	if !errors.As(err, &other) {
		return held, err
	}
	health := rpc.NewHealth()
	health.Set(waitLock, fmt.Sprintf("standing by for the end of %v", other.Holder))
	ctx, stop := context.WithCancel(ctx)
	served := make(chan struct{})
	go func() {
		defer close(served)
		// A second standby beside this one, outside of containers, has the socket already. Both stand by all the same.
		if err := rpc.Serve(ctx, rpc.Config{
			Address: address(cfg.StateDir, cfg.Service), Register: func(*grpc.Server) {}, Health: health, Logger: cfg.Logger,
		}); err != nil {
			cfg.Logger.Warn("nobody can ask whether this process stands by", telemetry.KeyError, err)
		}
	}()
	defer func() { <-served }()
	defer stop()
	return wait(ctx, cfg, self, other.Holder)
}

// wait tries until the lock is free.
func wait(ctx context.Context, cfg Config, self, holder statedir.Holder) (*statedir.Held, error) {
	cfg.Logger.Info("standing by: another process has the lock, and this one takes over when it ends", "holder", holder.String())
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-cfg.Clock.After(pollInterval):
		}
		held, err := statedir.LockAs(cfg.StateDir, self)
		var other *statedir.HeldError
		switch {
		case err == nil:
			cfg.Logger.Info("taking over", "from", holder.String())
			return held, nil
		case !errors.As(err, &other):
			return nil, err
		case other.Holder != holder && other.Holder.PID != 0:
			holder = other.Holder
			cfg.Logger.Info("another process has taken over, standing by for it", "holder", holder.String())
		}
	}
}

// Ask asks whether a process of this container stands by for a service. It returns who that process waits for, and false
// when nobody stands by here.
func Ask(ctx context.Context, stateDir string, service layout.Service) (holder statedir.Holder, ok bool, err error) {
	conn, err := rpc.Dial(address(stateDir, service))
	if err != nil {
		return statedir.Holder{}, false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		return statedir.Holder{}, false, nil //nolint:nilerr // nobody answers: nobody stands by
	}
	holder, err = statedir.LastHolder(stateDir, string(service))
	return holder, err == nil, err
}

// address is where a standby answers. Sockets without a file belong to a network namespace; the number of the process
// namespace keeps containers apart that share the machine's network.
func address(stateDir string, service layout.Service) string {
	var namespace uint64
	if info, err := os.Stat("/proc/self/ns/pid"); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			namespace = stat.Ino
		}
	}
	id := "unknown"
	if l, err := layout.New(stateDir); err == nil {
		id = l.ID()
	}
	return fmt.Sprintf("unix-abstract:quartet/%s/%d/%s-standby", id, namespace, service)
}
