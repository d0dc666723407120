package nodestatus

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/nodestatus/internal/csinode"
	"github.com/quartet-node/quartet/services/nodestatus/internal/inventory"
)

// storage is the storage of a node in a cluster: what syncloop reports of it, and what the API server is told.
type storage struct {
	reported *inventory.Inventory
	drivers  *csinode.Keeper
}

// newStorage returns the storage of a node in a cluster.
func newStorage(
	cfg nodeconfig.Config, to clients, reported *inventory.Inventory, health *rpc.Health, logger *slog.Logger,
	tracer trace.Tracer,
) *storage {
	return &storage{reported: reported, drivers: csinode.New(csinode.Config{
		Core: to.cluster.Core, Storage: to.cluster.Storage, Name: cfg.NodeName, Drivers: reported.Drivers,
		Health: health, Clock: clock.RealClock{}, Logger: logger, Tracer: tracer,
	})}
}

// registered receives the Node in the API server; nil if it does not exist.
func (s *storage) registered(node *v1.Node) { s.drivers.Registered(node) }

// run publishes the drivers. statusChanged is called when the node may become ready.
func (s *storage) run(ctx context.Context, group *errgroup.Group, statusChanged func()) {
	group.Go(func() error {
		s.drivers.Run(ctx, statusChanged)
		return nil
	})
}

// followInventory follows what plugins and volumes add to the Node. devicesChanged is called when the resources of
// device plugins have changed.
func followInventory(
	ctx context.Context, group *errgroup.Group, to clients, node *published, reported *inventory.Inventory,
	devicesChanged func(), registry prometheus.Registerer,
) {
	driversChanged, volumesChanged := func() {}, func() {}
	if node.storage != nil {
		driversChanged, volumesChanged = node.storage.drivers.Changed, node.reporter.Changed
	}
	metrics := stream.NewFollowedMetrics(registry, stream.NameStorage)
	group.Go(func() error {
		_ = reported.Run(ctx, inventory.Config{ // it ends with ctx
			Source: inventory.Source(to.syncloop), DriversChanged: driversChanged, VolumesChanged: volumesChanged,
			DevicesChanged: devicesChanged, Clock: clock.RealClock{}, Logger: node.logger, Metrics: metrics,
		})
		return nil
	})
}
