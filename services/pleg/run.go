package main

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/pleg/internal/hints"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/services/pleg/internal/runtimestate"
	"github.com/quartet-node/quartet/services/pleg/internal/server"
)

// What pleg waits for, as grpc.health.v1 names it.
const (
	waitRuntime = "runtime"
	waitRelist  = "relist"
)

// run observes the runtime and serves what it sees until ctx ends.
func run(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) (err error) {
	logger := tel.Logger
	cfg.LogUnsupported(logger)
	lock, err := statedir.Lock(cfg.StateDir, string(nodeconfig.PLEG))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	// The calls are not traced: they read, on no pod's behalf.
	client, err := cri.New(cri.Config{
		Endpoint: cfg.Kubelet.ContainerRuntimeEndpoint, Timeout: cfg.Kubelet.RuntimeRequestTimeout.Duration, Logger: logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()

	health := rpc.NewHealth()
	health.Set(waitRuntime, "waits for the container runtime at "+cfg.Kubelet.ContainerRuntimeEndpoint)
	health.Set(waitRelist, "waits for the first relist")
	events := stream.NewEdge[*lifecyclev1.Event](stream.Config{})
	relister := relist.New(relist.Config{
		Runtime: client.Runtime, Events: events, Tracer: tel.Tracer, Timeout: cfg.Kubelet.RuntimeRequestTimeout.Duration,
		Clock: clock.RealClock{}, Logger: logger,
	})
	runtime := runtimestate.New(runtimestate.Config{
		Endpoint: cfg.Kubelet.ContainerRuntimeEndpoint, Runtime: client.Runtime, Clock: clock.RealClock{}, Logger: logger,
		Changed: func(reason string) { health.Set(waitRuntime, reason) },
	})
	srv := server.New(relister, events, runtime, clock.RealClock{})

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return relister.Run(ctx) })
	group.Go(func() error { return runtime.Run(ctx) })
	group.Go(func() error {
		return hints.Run(ctx, hints.Config{Events: client.Events, Relister: relister, Clock: clock.RealClock{}, Logger: logger})
	})
	group.Go(func() error {
		select {
		case <-relister.Synced():
			health.Set(waitRelist, "")
		case <-ctx.Done():
		}
		return nil
	})
	group.Go(func() error {
		defer events.Close()
		return rpc.Serve(ctx, rpc.Config{
			Address: cfg.Listen, Register: srv.Register, Health: health, Logger: logger, AllowedUIDs: cfg.AllowedUIDs,
			Ready: func() { logger.Info("serving", "address", cfg.Listen) },
		})
	})
	return group.Wait()
}
