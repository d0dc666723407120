package nodestatus

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/logind"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/services/nodestatus/internal/shutdown"
)

// shutdownOf creates the manager that terminates the pods before the machine shuts down; nil if the configuration does
// not enable it. changed is called when a shutdown begins or is canceled.
func shutdownOf(
	cfg nodeconfig.Config,
	to clients,
	health *rpc.Health,
	registry prometheus.Registerer,
	changed func(message string),
	logger *slog.Logger,
) (*shutdown.Manager, error) {
	metrics := shutdown.NewMetrics(registry)
	periods := shutdown.PeriodsOf(&cfg.Kubelet)
	if len(periods) == 0 {
		return nil, nil
	}
	boot, err := boottime.Boot()
	if err != nil {
		return nil, err
	}
	return shutdown.New(shutdown.Config{
		Periods: periods, DropIn: logind.DropIn, Engine: shutdown.NewSyncLoop(to.syncloop), StateDir: cfg.StateDir,
		Connect: func(ctx context.Context) (shutdown.Logind, error) { return logind.Connect(ctx, "") },
		Boot:    boot, BootTime: boottime.Now, Changed: changed,
		Waiting: func(reason string) { health.Set("logind", reason) }, Logger: logger, Metrics: metrics,
	}), nil
}

// shutdown publishes an event when a shutdown of the machine begins or is canceled.
func (n *nodeEvents) shutdown(message string) {
	if n != nil {
		n.NodeNormal(context.Background(), "Shutdown", message)
	}
}
