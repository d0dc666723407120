package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// askAgain is the pause after a service has ended during a query.
const askAgain = 100 * time.Millisecond

// announce notifies systemd that the node is ready when each of its services is, and that it stops when ctx ends.
// It returns then.
func (o Options) announce(ctx context.Context, l layout.Layout, logger *slog.Logger) {
	for _, service := range o.Configmux.Services() {
		if err := awaitServing(ctx, l.Address(service)); err != nil {
			if ctx.Err() == nil {
				logger.Warn("cannot determine whether the node is ready", telemetry.KeyError, fmt.Errorf("%s: %w", service, err))
			}
			break
		}
	}
	if ctx.Err() == nil {
		o.Systemd.Ready(logger)
	}
	<-ctx.Done()
	o.Systemd.Stopping(logger)
}

// awaitServing returns when a service is serving, or with the error of ctx if that ends first.
func awaitServing(ctx context.Context, address string) (err error) {
	conn, err := rpc.Dial(address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for {
		answer, err := grpc_health_v1.NewHealthClient(conn).
			Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
			return nil
		case err != nil && status.Code(err) != codes.Unavailable:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(askAgain):
		}
	}
}
