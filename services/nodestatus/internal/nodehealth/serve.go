package nodehealth

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/healthz"
	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// retryAfter is the time until a port that is taken is tried again: the kubelet's.
	retryAfter = 5 * time.Second
	// healthName is what the health of nodestatus calls the port.
	healthName = "healthzPort"
)

// ServeConfig says what to serve, and where.
type ServeConfig struct {
	// Socket is that of healthzBindAddress and healthzPort. Sockets are those that this process was passed; nil for none.
	Socket  sockets.Socket
	Sockets *sockets.Set
	Checks  []healthz.Check
	// Health is told why nothing is served.
	Health *rpc.Health
	Clock  clock.Clock
	Logger *slog.Logger
}

// Serve answers /healthz until ctx ends. As the kubelet, it does not give up when it cannot listen, because a node whose port is taken by
// another program works otherwise: it says so and tries again.
func Serve(ctx context.Context, cfg ServeConfig) {
	var last string
	for ctx.Err() == nil {
		err := serve(ctx, cfg)
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != last {
			last = text
			cfg.Logger.Warn("/healthz is not served: stop who has the port, or set healthzPort to another one or to 0; trying again",
				"address", cfg.Socket.Address, telemetry.KeyError, err, telemetry.KeyRetryAfter, retryAfter)
		}
		cfg.Health.Set(healthName, "/healthz is not served on "+cfg.Socket.Address+": "+err.Error())
		select {
		case <-ctx.Done():
		case <-cfg.Clock.After(retryAfter):
		}
	}
}

// serve listens and serves until ctx ends or connections cannot be accepted.
func serve(ctx context.Context, cfg ServeConfig) error {
	listener, err := cfg.Sockets.Listen(ctx, cfg.Socket, cfg.Logger)
	if err != nil {
		return err
	}
	cfg.Health.Set(healthName, "")
	cfg.Logger.Info("serving /healthz", "address", listener.Addr().String())
	return httpserve.Until(ctx, listener, healthz.Handler(cfg.Checks...), cfg.Logger)
}
