package configmux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/certexpiry"
	"github.com/quartet-node/quartet/internal/debugapi"
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/standby"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/configmux/internal/server"
)

// checkpointFile, in the state directory, stores the last good content of the manifests.
const checkpointFile = "configmux-manifests.json"

// appliedDir, in the state directory, stores the applied pods.
const appliedDir = "applied"

// keyFile, in the state directory, stores the key that encrypts secrets.
const keyFile = "secrets.key"

// objectsPerPod limits the config maps and secrets that may be applied, relative to the limit of pods, because each has
// a file.
const objectsPerPod = 2

// appliedPerRunning limits the pods that may be applied, relative to the maximum of running pods, because each has a
// file.
const appliedPerRunning = 10

// run reads the sources and serves the desired pods until ctx ends.
func run(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) (err error) {
	cfg.LogUnsupported(tel.Logger)
	held, err := lock(ctx, cfg, tel.Logger)
	if err != nil {
		return ended(ctx, err)
	}
	defer func() { err = errors.Join(err, held.Release()) }()

	cfg.Starting.At("read the keys and the saved objects in " + cfg.StateDir)
	health, registry := rpc.NewHealth(), metrics.New(nodeconfig.ConfigMux).Registry
	newPart := newOneNode
	if cfg.Nodes.Given() {
		newPart = newSite
	}
	desired, err := newPart(cfg, tel, health, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, desired.leave()) }()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return desired.run(ctx) })
	group.Go(func() error {
		return service.Watch(ctx, cfg, tel.Logger, health, desired.loops()...)
	})
	if shown, ok := certexpiry.OfFiles(cfg.TLS); ok {
		watched := certexpiry.New(shown, registry, clock.RealClock{}, tel.Logger)
		group.Go(func() error { return watched.Run(ctx) })
	}
	group.Go(func() error {
		return metrics.Serve(ctx, metrics.ServeConfig{
			Address:     cfg.MetricsListen,
			Sockets:     cfg.Sockets,
			AllowedUIDs: cfg.MetricsUIDs(),
			Registry:    registry,
			Logger:      tel.Logger,
		})
	})
	group.Go(func() error {
		defer desired.end()
		return rpc.Serve(ctx, rpc.Config{
			Address: cfg.Listen,
			Register: debugapi.With(
				debugapi.Config{Logger: tel.Logger, Clock: clock.RealClock{}},
				server.New(desired.served()).Register,
			),
			Health: health,
			Logger: tel.Logger,
			Users:  cfg.Users, Network: cfg.Network, Sockets: cfg.Sockets,
			Ready: func() {
				tel.Logger.Info("serving", "address", cfg.Listen, "node", cfg.NodeName)
				cfg.Starting.Serving()
				cfg.Systemd.Ready(tel.Logger)
			},
		})
	})
	return group.Wait()
}

// part provides the desired pods: of one node, or of the nodes of a site.
type part interface {
	// run reads the sources until ctx ends.
	run(ctx context.Context) error
	// served returns the configuration of the server.
	served() server.Config
	// loops returns the loops that are checked: the sources and their merge, which is one lock for all.
	loops() []watchdog.Loop
	// end ends all streams.
	end()
	// leave closes the connections. It is called after every user of them has ended.
	leave() error
}

// lock takes the lock of the state directory. With --standby it waits while another process holds it.
func lock(ctx context.Context, cfg nodeconfig.Config, logger *slog.Logger) (*statedir.Held, error) {
	if cfg.Standby {
		cfg.Starting.At("") // it waits for the end of the other process
		return standby.Lock(ctx, standby.Config{
			StateDir: cfg.StateDir, Service: nodeconfig.ConfigMux, Clock: clock.RealClock{}, Logger: logger,
		})
	}
	cfg.Starting.At("lock " + cfg.StateDir)
	held, err := statedir.Lock(cfg.StateDir, string(nodeconfig.ConfigMux))
	var other *statedir.HeldError
	if errors.As(err, &other) {
		return nil, fmt.Errorf("%w, or start this one with --standby, so that it takes over when that one ends", err)
	}
	return held, err
}

// ended maps the end of the process to nil.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
