package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/certexpiry"
	"github.com/quartet-node/quartet/internal/debugapi"
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/nodeip"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/nodestatus/internal/checkpoint"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
	"github.com/quartet-node/quartet/services/nodestatus/internal/heartbeat"
	"github.com/quartet-node/quartet/services/nodestatus/internal/inventory"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
	"github.com/quartet-node/quartet/services/nodestatus/internal/server"
)

// run serves the Node until ctx ends.
func run(ctx context.Context, cfg nodeconfig.Config, logger *slog.Logger, tracer trace.Tracer) (err error) {
	cfg.LogUnsupported(logger)
	cfg.Starting.At("lock " + cfg.StateDir)
	held, err := statedir.Lock(cfg.StateDir, string(nodeconfig.NodeStatus))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Release()) }()
	settings, err := nodeobject.SettingsOf(cfg, buildinfo.Kubernetes())
	if err != nil {
		return &nodeconfig.WrongError{Err: err}
	}
	var to clients
	if cfg.Kubeconfig != "" {
		if to.cluster, err = apiclient.New(apiclient.ConfigOf(nodeconfig.NodeStatus, cfg)); err != nil {
			return err
		}
		defer to.cluster.Close()
		if to.heartbeat, err = apiclient.New(heartbeatClient(cfg)); err != nil {
			return err
		}
		defer to.heartbeat.Close()
	}
	pleg, err := rpc.DialService(nodeconfig.PLEG, cfg.Peers.PLEG, cfg.TLS)
	if err != nil {
		return fmt.Errorf("create the client of pleg: %w", err)
	}
	defer func() { err = errors.Join(err, pleg.Close()) }()
	syncloop, err := rpc.DialService(nodeconfig.SyncLoop, cfg.Peers.SyncLoop, cfg.TLS)
	if err != nil {
		return fmt.Errorf("create the client of syncloop: %w", err)
	}
	defer func() { err = errors.Join(err, syncloop.Close()) }()
	to.pleg, to.syncloop = pleg, syncloop
	return serve(ctx, cfg, settings, to, logger, tracer)
}

// clients holds the clients of nodestatus.
type clients struct {
	pleg, syncloop grpc.ClientConnInterface
	// cluster is the client of the API server; nil for a standalone node.
	cluster *apiclient.Client
	// heartbeat is the client of the API server for the status and the lease, see heartbeatClient.
	heartbeat *apiclient.Client
}

// serve runs the heart, the server of its Node, and the components that keep the Node in the API server.
func serve(
	ctx context.Context,
	cfg nodeconfig.Config,
	settings nodeobject.Settings,
	to clients,
	logger *slog.Logger,
	tracer trace.Tracer,
) error {
	cfg.Starting.At("read what is saved of the Node in " + cfg.StateDir)
	previous, err := checkpoint.Load(cfg.StateDir, settings.Name, facts.MachineID())
	if err != nil {
		logger.Warn("starting without the saved state of the node", telemetry.KeyError, err)
	}
	recreated := err == nil && previous.Node == nil && !hasDeviceCheckpoint(cfg.RootDir)
	health, registry := rpc.NewHealth(), metrics.New(nodeconfig.NodeStatus).Registry
	registry.MustRegister(nodeInfo(settings.Name)...)
	if to.cluster != nil {
		requests := apiclient.NewMetrics(registry)
		to.cluster.CountIn(requests)
		to.heartbeat.CountIn(requests)
	}
	node := &published{logger: logger, tracer: tracer}
	if node.events, err = nodeEventsOf(cfg, previous.Node, logger, registry); err != nil {
		return err
	}
	addresses := nodeip.New(nodeip.Config{Name: cfg.NodeName, NodeIP: cfg.NodeIP})
	var heart *heartbeat.Heart
	var disk statedir.Writer
	shutdowns, err := shutdownOf(cfg, to, health, registry, func(message string) {
		heart.Look()
		node.events.shutdown(message)
	}, logger)
	if err != nil {
		return err
	}
	reported := inventory.New()
	heart = heartbeat.New(heartbeat.Config{
		Settings: settings, Period: cfg.Kubelet.NodeStatusUpdateFrequency.Duration,
		AskPLEG:     heartbeat.AskPLEG(to.pleg, cfg.Peers.PLEG),
		AskSyncLoop: heartbeat.AskSyncLoop(to.syncloop, cfg.Peers.SyncLoop),
		AskTimeout:  heartbeat.DefaultAskTimeout,
		ListImages:  heartbeat.AskImages(to.syncloop),
		Devices:     reported.Devices,
		ReadMachine: func() (facts.Machine, error) { return facts.ReadMachine(cfg.StateDir) },
		ReadNow: func() (facts.Readings, error) {
			readings, err := facts.ReadNow(cfg.RootDir, cfg.StateDir)
			// A machine without an address is no error: it may be cut off on purpose.
			readings.IP = addresses.Find(ctx)
			return readings, err
		},
		Previous: previous, Publish: node.computed, Observe: func(input nodeobject.Input, output nodeobject.State) {
			node.server.Observed(input, output)
		}, ShuttingDown: shutdowns.ShuttingDown,
		Save:   func(state nodeobject.State) error { return checkpoint.Save(&disk, cfg.StateDir, state) },
		Health: health, Clock: clock.RealClock{}, Logger: logger, Metrics: heartbeat.NewMetrics(registry), Tracer: tracer,
	})
	node.server = server.New(server.Config{
		NodeName:      settings.Name,
		Standalone:    to.cluster == nil,
		ExternalCloud: cfg.ExternalCloud,
		Health:        health,
		Overdue:       heart.Overdue,
		Served:        stream.NewServedMetrics(registry, stream.NameNode),
		Events:        node.events.Stream(),
	})
	group, ctx := errgroup.WithContext(ctx)
	if to.cluster != nil {
		if err := keepCertificate(ctx, group, cfg, health, registry, logger); err != nil {
			return err
		}
		join(ctx, group, cfg, to, node, reported, recreated, health, registry)
	}
	followInventory(ctx, group, to, node, reported, heart.Look, registry)
	group.Go(func() error { return node.events.run(ctx) })
	group.Go(func() error { return heart.Run(ctx) })
	group.Go(func() error {
		return service.Watch(ctx, cfg, logger, health, node.loops(heart)...)
	})
	if shutdowns != nil {
		group.Go(func() error {
			if err := shutdowns.Run(ctx); ctx.Err() == nil {
				return err
			}
			return nil
		})
	}
	serveHealth(ctx, group, cfg, heart, health, logger)
	if shown, ok := certexpiry.OfFiles(cfg.TLS); ok {
		watched := certexpiry.New(shown, registry, clock.RealClock{}, logger)
		group.Go(func() error { return watched.Run(ctx) })
	}
	group.Go(func() error {
		return metrics.Serve(ctx, metrics.ServeConfig{
			Address: cfg.MetricsListen, Sockets: cfg.Sockets, AllowedUIDs: cfg.MetricsUIDs(), Registry: registry, Logger: logger,
		})
	})
	group.Go(func() error {
		defer node.server.Close()
		return rpc.Serve(ctx, rpc.Config{
			Address: cfg.Listen, Health: health, Logger: logger, Users: cfg.Users,
			Network: cfg.Network, Sockets: cfg.Sockets,
			Register: debugapi.With(debugapi.Config{Logger: logger, Clock: clock.RealClock{}}, node.server.Register),
			Ready: func() {
				logger.Info("serving", "address", cfg.Listen, "node", settings.Name)
				cfg.Starting.Serving()
				cfg.Systemd.Ready(logger)
			},
		})
	})
	return group.Wait()
}
