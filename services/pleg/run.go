package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/pleg/internal/journal"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/services/pleg/internal/runtimeevents"
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
	cfg.LogUnsupported(tel.Logger)
	release, err := takePlace(cfg, tel.Logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	registry := metrics.New(nodeconfig.PLEG).Registry
	// The calls are not traced: they read, on no pod's behalf.
	client, err := cri.New(cri.Config{
		Endpoint: cfg.Kubelet.ContainerRuntimeEndpoint, Timeout: cfg.Kubelet.RuntimeRequestTimeout.Duration, Logger: tel.Logger,
		Registerer: registry,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return observe(ctx, cfg, tel, client, registry)
}

// takePlace takes the lock of the node's pleg, and returns what gives it up. One that only reads beside it takes none:
// it writes nothing, so two do not harm each other; the lock keeps the node's own the only one that others find, and
// that keeps what it has told.
func takePlace(cfg nodeconfig.Config, logger *slog.Logger) (release func() error, err error) {
	if cfg.ReadOnly {
		logger.Info("running beside the node's own pleg, without its lock", "address", cfg.Listen)
		return func() error { return nil }, nil
	}
	held, err := statedir.Lock(cfg.StateDir, string(nodeconfig.PLEG))
	var other *statedir.HeldError
	switch {
	case errors.As(err, &other):
		return nil, fmt.Errorf("%w, or run this one beside it with --read-only and a --listen of its own", err)
	case err != nil:
		return nil, err
	}
	return held.Release, nil
}

// observe runs everything that looks at the runtime, and who serves what it sees.
func observe(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry, client *cri.Client, registry *prometheus.Registry) error {
	logger, health := tel.Logger, rpc.NewHealth()
	health.Set(waitRuntime, "waits for the container runtime at "+cfg.Kubelet.ContainerRuntimeEndpoint)
	health.Set(waitRelist, "waits for the first relist")
	served := stream.NewServedMetrics(registry, stream.NameLifecycleEvents)
	registry.MustRegister(discarded(served))
	book := openTold(cfg, logger, registry)
	events := stream.NewEdge[*lifecyclev1.Event](stream.Config{Metrics: served, Continues: book.Continues()})
	relister := relist.New(relist.Config{
		Runtime: client.Runtime, Events: events, Told: book, Tracer: tel.Tracer, Timeout: cfg.Kubelet.RuntimeRequestTimeout.Duration,
		BootTime: boottime.Now, Clock: clock.RealClock{}, Logger: logger, Metrics: relist.NewMetrics(registry),
	})
	runtime := runtimestate.New(runtimestate.Config{
		Endpoint: cfg.Kubelet.ContainerRuntimeEndpoint, Runtime: client.Runtime, Clock: clock.RealClock{}, Logger: logger,
		Changed: func(reason string) { health.Set(waitRuntime, reason) },
	})
	runtime.Expose(registry)
	srv := server.New(relister, events, runtime, clock.RealClock{})

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return relister.Run(ctx) })
	group.Go(func() error { return book.Run(ctx) })
	group.Go(func() error { return runtime.Run(ctx) })
	group.Go(func() error {
		return runtimeevents.Run(ctx, runtimeevents.Config{
			Events: client.Events, Relister: relister, Clock: clock.RealClock{}, Logger: logger, Metrics: runtimeevents.NewMetrics(registry),
		})
	})
	group.Go(func() error {
		return metrics.Serve(ctx, metrics.ServeConfig{
			Address: cfg.MetricsListen, Sockets: cfg.Sockets, AllowedUIDs: cfg.AllowedUIDs, Registry: registry, Logger: logger,
		})
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
			Ready: func() {
				logger.Info("serving", "address", cfg.Listen)
				cfg.Systemd.Ready(logger)
			},
		})
	})
	return group.Wait()
}

// openTold opens what the node's pleg has told before this process; nil for one that only reads beside it, which has
// its own followers and leaves the file alone.
func openTold(cfg nodeconfig.Config, logger *slog.Logger, registry *prometheus.Registry) *journal.Book {
	if cfg.ReadOnly {
		return nil
	}
	path := filepath.Join(cfg.StateDir, journal.FileName)
	return journal.Open(journal.Config{
		File: journal.OnDisk(path), Path: path, Clock: clock.RealClock{}, Logger: logger, Metrics: journal.NewMetrics(registry),
	})
}

// discarded counts what the kubelet counts under this name: events that did not reach who is to act on them one by one,
// since that was too slow.
func discarded(served *stream.ServedMetrics) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "kubelet_pleg_discard_events",
		Help: "Events that a subscriber was not sent one by one, since it fell behind; it then began anew from the state of all pods.",
	}, func() float64 { return float64(served.Skipped()) })
}
