package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/watchdog"
)

const (
	// serverPeriods is the number of periods of the watchdog between two connections to the own server.
	serverPeriods = 3
	// serverTimeout is how long the server may take for its answer, which needs no I/O.
	serverTimeout = 5 * time.Second
)

// Watch checks the loops of a process, and its server, until ctx ends. What stands still is in the process's health and
// log, and the parent of the process, or systemd, gets no message that it works; so they end it.
func Watch(
	ctx context.Context, cfg nodeconfig.Config, logger *slog.Logger, health *rpc.Health, loops ...watchdog.Loop,
) error {
	server := watchdog.Loop{Name: "server", Check: answers(ctx, health, cfg.Listen, serverTimeout), Periods: serverPeriods}
	return watchdog.New(watchdog.Config{
		Loops: append(loops, server), Changed: health.SetStuck, Alive: func() { cfg.Systemd.Alive(logger) },
		Clock: clock.RealClock{}, Logger: logger,
	}).Run(ctx)
}

// answers returns a Check of the server of this process. It connects as any client does, but not by the second name of
// the socket, which only clients of Quartet try. A server that does not answer hangs, or its socket was removed; a new
// process helps in both cases.
func answers(ctx context.Context, health *rpc.Health, address string, timeout time.Duration) func() error {
	return func() error {
		if !health.Served() {
			return nil
		}
		if err := ask(ctx, address, timeout); err != nil && ctx.Err() == nil {
			return fmt.Errorf("its server at %s does not answer: %w", address, err)
		}
		return nil
	}
}

// ask returns nil if the server of an address answers, whatever that is.
func ask(ctx context.Context, address string, timeout time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := rpc.DialThere(address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	request := &grpc_health_v1.HealthCheckRequest{Service: rpc.Loops}
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, request, grpc.WaitForReady(true))
	return err
}
