// Package standby lets a second process of a service wait for the end of the first and take over. The lock in the state
// directory decides which process is active: the kernel releases it when its holder ends, for any reason.
//
// A standby does not serve the service's address. To make its own health available, even where two processes share
// their directories and nothing else, it serves grpc.health.v1 on an abstract socket, which only processes of its own
// container can reach: [Ask].
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

// pollInterval is the interval of attempts to take the lock. The kernel has no notification for the release of such a
// lock.
const pollInterval = 100 * time.Millisecond

// waitLock is the name of the lock in grpc.health.v1.
const waitLock = "lock"

// Config holds the parameters of Lock.
type Config struct {
	// StateDir is the directory with the lock.
	StateDir string
	// Service is the service of the lock.
	Service layout.Service
	// Clock times the attempts.
	Clock clock.Clock
	// Logger logs the holder of the lock and the takeover.
	Logger *slog.Logger
}

// Lock takes the lock of a service, as statedir.Lock does, and waits while another process holds it. It fails if the
// lock is unusable, and with the error of ctx if that ends first.
func Lock(ctx context.Context, cfg Config) (*statedir.Held, error) {
	self := statedir.Self(string(cfg.Service))
	held, err := statedir.LockAs(cfg.StateDir, self)
	var other *statedir.HeldError
	if !errors.As(err, &other) {
		return held, err
	}
	health := rpc.NewHealth()
	health.Set(waitLock, fmt.Sprintf("standby for %v", other.Holder))
	ctx, stop := context.WithCancel(ctx)
	served := make(chan struct{})
	go func() {
		defer close(served)
		// Another standby on this machine may have the socket already. Both still wait for the lock.
		if err := rpc.Serve(ctx, rpc.Config{
			Address: address(cfg.StateDir, cfg.Service), Register: func(*grpc.Server) {}, Health: health, Logger: cfg.Logger,
		}); err != nil {
			cfg.Logger.Warn("the health of this standby process cannot be served", telemetry.KeyError, err)
		}
	}()
	defer func() { <-served }()
	defer stop()
	return wait(ctx, cfg, self, other.Holder)
}

// wait retries until the lock is free.
func wait(ctx context.Context, cfg Config, self, holder statedir.Holder) (*statedir.Held, error) {
	cfg.Logger.Info(
		"on standby: another process holds the lock; this process takes over when it ends",
		"holder",
		holder.String(),
	)
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
			cfg.Logger.Info("another process has taken over; still on standby", "holder", holder.String())
		}
	}
}

// Ask reports whether a process of this container is on standby for a service. It returns the lock holder that the
// standby waits for, and false if there is no standby.
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

// address returns the address of a standby's socket. Abstract sockets belong to a network namespace; the ID of the PID
// namespace distinguishes containers that share the machine's network.
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
