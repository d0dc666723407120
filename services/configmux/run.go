package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/filesource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/server"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// checkpointFile, in the state directory, keeps what the manifests stood for.
const checkpointFile = "configmux-manifests.json"

// run reads the sources and serves the desired pods until ctx ends.
func run(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) (err error) {
	cfg.LogUnsupported(tel.Logger)
	held, err := statedir.Lock(cfg.StateDir, string(nodeconfig.ConfigMux))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Release()) }()

	health := rpc.NewHealth()
	sources := sourcesOf(cfg, tel)
	desired := mux.New(mux.Config{
		Sources: sources, Health: health, Clock: clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger,
	})
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range sources {
		group.Go(func() error {
			if err := s.Run(ctx, desired); err != nil {
				return fmt.Errorf("source %s: %w", s.Name(), err)
			}
			return nil
		})
	}
	group.Go(func() error {
		defer desired.Close()
		return rpc.Serve(ctx, rpc.Config{
			Address: cfg.Listen, Register: server.New(desired).Register, Health: health, Logger: tel.Logger, AllowedUIDs: cfg.AllowedUIDs,
			Ready: func() { tel.Logger.Info("serving", "address", cfg.Listen, "node", cfg.NodeName) },
		})
	})
	return group.Wait()
}

// sourcesOf returns the sources that the configuration asks for. A node may well have none.
func sourcesOf(cfg nodeconfig.Config, tel *telemetry.Telemetry) []source.Source {
	var sources []source.Source
	if path := cfg.Kubelet.StaticPodPath; path != "" {
		sources = append(sources, filesource.New(filesource.Config{
			Path: path, Node: cfg.NodeName, Period: cfg.Kubelet.FileCheckFrequency.Duration,
			Checkpoint: filepath.Join(cfg.StateDir, checkpointFile),
			Clock:      clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger,
		}))
	}
	return sources
}
