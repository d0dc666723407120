package nodestatus

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/nodestatus/internal/heartbeat"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodehealth"
)

// serveHealth serves the health of the node on healthzPort, unless that is 0.
func serveHealth(
	ctx context.Context,
	group *errgroup.Group,
	cfg nodeconfig.Config,
	heart *heartbeat.Heart,
	health *rpc.Health,
	logger *slog.Logger,
) {
	if *cfg.Kubelet.HealthzPort == 0 {
		return
	}
	judge := nodehealth.Judge{
		Parts: heart.Parts, Self: heart.Overdue, Log: func() error { return telemetry.LogBlocked(logger) }, Now: time.Now,
	}
	group.Go(func() error {
		nodehealth.Serve(ctx, nodehealth.ServeConfig{
			Socket: cfg.HealthzSocket(), Sockets: cfg.Sockets,
			Checks: judge.Checks(string(nodeconfig.SyncLoop), string(nodeconfig.PLEG), string(nodeconfig.ConfigMux)),
			Health: health, Clock: clock.RealClock{}, Logger: logger,
		})
		return nil
	})
}
