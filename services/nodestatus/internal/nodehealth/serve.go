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
	// retryAfter is the delay before an occupied port is tried again, as in the kubelet.
	retryAfter = 5 * time.Second
	// healthName is the name of the port in the health of nodestatus.
	healthName = "healthzPort"
)

// ServeConfig holds the parameters of Serve.
type ServeConfig struct {
	// Socket is the socket of healthzBindAddress and healthzPort. Sockets are the inherited sockets; nil for none.
	Socket  sockets.Socket
	Sockets *sockets.Set
	Checks  []healthz.Check
	// Health reports why nothing is served.
	Health *rpc.Health
	Clock  clock.Clock
	Logger *slog.Logger
}

// Serve serves /healthz until ctx ends. As the kubelet, it retries if it cannot listen, because the node works
// otherwise.
func Serve(ctx context.Context, cfg ServeConfig) {
	var last string
	for ctx.Err() == nil {
		err := serve(ctx, cfg)
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != last {
			last = text
			cfg.Logger.Warn("/healthz is not served: stop the program that uses the port, or set healthzPort to another port or to 0; retrying",
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
