package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/standby"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/filesource"
	"github.com/quartet-node/quartet/services/configmux/internal/httpsource"
	"github.com/quartet-node/quartet/services/configmux/internal/localsource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/replay"
	"github.com/quartet-node/quartet/services/configmux/internal/server"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// checkpointFile, in the state directory, keeps what the manifests stood for.
const checkpointFile = "configmux-manifests.json"

// appliedDir, in the state directory, has the pods that were applied.
const appliedDir = "applied"

// appliedPerRunning is how many pods may be applied for each that the node runs at most: more are a mistake, and each has
// a file.
const appliedPerRunning = 10

// firstReading is how long those who subscribe at the start wait for the sources to be read.
const firstReading = time.Second

// run reads the sources and serves the desired pods until ctx ends.
func run(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) (err error) {
	cfg.LogUnsupported(tel.Logger)
	held, err := lock(ctx, cfg, tel.Logger)
	if err != nil {
		return ended(ctx, err)
	}
	defer func() { err = errors.Join(err, held.Release()) }()

	member, err := join(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, member.leave()) }()

	health, registry := rpc.NewHealth(), metrics.New(nodeconfig.ConfigMux).Registry
	var desired *mux.Mux
	sources, local := sourcesOf(cfg, tel, registry, member, health, func() localsource.Others { return desired })
	desired = mux.New(mux.Config{
		Sources: sources, Health: health, Clock: clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger,
		Metrics: mux.NewMetrics(registry),
	})
	opening := mux.NewOpening(sources, desired)
	opened := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		opening.Wait(ctx, firstReading, clock.RealClock{})
		close(opened)
		return nil
	})
	for _, s := range sources {
		group.Go(func() error {
			if err := s.Run(ctx, opening); err != nil {
				return fmt.Errorf("source %s: %w", s.Name(), err)
			}
			return nil
		})
	}
	group.Go(func() error {
		return metrics.Serve(ctx, metrics.ServeConfig{
			Address: cfg.MetricsListen, AllowedUIDs: cfg.AllowedUIDs, Registry: registry, Logger: tel.Logger,
		})
	})
	group.Go(func() error {
		defer desired.Close()
		return rpc.Serve(ctx, rpc.Config{
			Address: cfg.Listen, Register: server.New(desired, opened, local).Register, Health: health, Logger: tel.Logger, AllowedUIDs: cfg.AllowedUIDs,
			Ready: func() { tel.Logger.Info("serving", "address", cfg.Listen, "node", cfg.NodeName) },
		})
	})
	return group.Wait()
}

// lock takes the lock of the state directory. With --standby it waits for it as long as another process has it.
func lock(ctx context.Context, cfg nodeconfig.Config, logger *slog.Logger) (*statedir.Held, error) {
	if cfg.Standby {
		return standby.Lock(ctx, standby.Config{
			StateDir: cfg.StateDir, Service: nodeconfig.ConfigMux, Clock: clock.RealClock{}, Logger: logger,
		})
	}
	held, err := statedir.Lock(cfg.StateDir, string(nodeconfig.ConfigMux))
	var other *statedir.HeldError
	if errors.As(err, &other) {
		return nil, fmt.Errorf("%w, or start this one with --standby, so that it takes over when that one ends", err)
	}
	return held, err
}

// ended makes no error of the end of the process.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// sourcesOf returns the sources that the configuration asks for, and of these the one that pods are applied to. A replay of a
// recording has none: it is to depend on nothing else.
func sourcesOf(cfg nodeconfig.Config, tel *telemetry.Telemetry, registry prometheus.Registerer, member *membership, health *rpc.Health, others func() localsource.Others) ([]source.Source, server.Local) {
	if cfg.Replay != "" {
		return []source.Source{replay.New(replay.Config{
			Path: cfg.Replay, Speed: cfg.ReplaySpeed, Clock: clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger,
		})}, nil
	}
	allowed := privilege.Allowed(cfg.HostPrivileges)
	local := localsource.New(localsource.Config{
		Dir: filepath.Join(cfg.StateDir, appliedDir), Node: cfg.NodeName, Allowed: allowed, MaxPods: appliedPerRunning * int(cfg.Kubelet.MaxPods), Others: others,
		Clock: clock.RealClock{}, Tracer: tel.Tracer,
	})
	sources := []source.Source{local}
	if path := cfg.Kubelet.StaticPodPath; path != "" {
		sources = append(sources, filesource.New(filesource.Config{
			Path: path, Node: cfg.NodeName, Allowed: allowed, Period: cfg.Kubelet.FileCheckFrequency.Duration,
			Checkpoint: filepath.Join(cfg.StateDir, checkpointFile),
			Clock:      clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger, Metrics: filesource.NewMetrics(registry),
		}))
	}
	polls := httpsource.NewMetrics(registry)
	if at := cfg.StaticPodURL(); at != nil {
		sources = append(sources, httpsource.New(httpsource.Config{
			URL: at, Header: cfg.Kubelet.StaticPodURLHeader, Node: cfg.NodeName, Allowed: allowed, Period: cfg.Kubelet.HTTPCheckFrequency.Duration,
			Transport: httpsource.NewTransport(), Clock: clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger, Metrics: polls,
		}))
	}
	requests := apisource.NewMetrics(registry)
	if member != nil {
		sources = append(sources, member.source(cfg, health, requests, tel.Tracer, tel.Logger))
	}
	return sources, local
}
