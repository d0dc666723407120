package pleg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/certexpiry"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/debugapi"
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/runtimecalls"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/pleg/internal/journal"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/services/pleg/internal/runtimeevents"
	"github.com/quartet-node/quartet/services/pleg/internal/runtimestate"
	"github.com/quartet-node/quartet/services/pleg/internal/server"
)

// The dependencies of pleg in grpc.health.v1.
const (
	waitRuntime = "runtime"
	waitRelist  = "relist"
)

// run observes the runtime and serves the observations until ctx ends.
func run(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) (err error) {
	cfg.LogUnsupported(tel.Logger)
	release, err := takePlace(cfg, tel.Logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	registry := metrics.New(nodeconfig.PLEG).Registry
	// The calls are not traced, because they only read and belong to no pod.
	calls := &runtimecalls.Tap{}
	client, err := cri.New(cri.Config{
		Endpoint:   cfg.Kubelet.ContainerRuntimeEndpoint,
		Timeout:    cfg.Kubelet.RuntimeRequestTimeout.Duration,
		Logger:     tel.Logger,
		Registerer: registry,
		Calls:      calls,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return observe(ctx, cfg, tel, client, calls, registry)
}

// takePlace takes the lock of the node's pleg, and returns a function that releases it. A read-only pleg takes no lock
// because it writes nothing. The lock ensures that there is only one pleg at the node's address and with the node's
// journal.
func takePlace(cfg nodeconfig.Config, logger *slog.Logger) (release func() error, err error) {
	if cfg.ReadOnly {
		logger.Info("running beside the node's own pleg, without its lock", "address", cfg.Listen)
		return func() error { return nil }, nil
	}
	cfg.Starting.At("lock " + cfg.StateDir)
	held, err := statedir.Lock(cfg.StateDir, string(nodeconfig.PLEG))
	var other *statedir.HeldError
	switch {
	case errors.As(err, &other):
		return nil, fmt.Errorf("%w, or run this one beside it with --read-only and another --listen address", err)
	case err != nil:
		return nil, err
	}
	return held.Release, nil
}

// observe runs the components that observe the runtime, and the server.
func observe(
	ctx context.Context,
	cfg nodeconfig.Config,
	tel *telemetry.Telemetry,
	client *cri.Client,
	calls *runtimecalls.Tap,
	registry *prometheus.Registry,
) error {
	logger, health := tel.Logger, rpc.NewHealth()
	health.Set(waitRuntime, "waits for the container runtime at "+cfg.Kubelet.ContainerRuntimeEndpoint)
	health.Set(waitRelist, "waits for the first relist")
	served := stream.NewServedMetrics(registry, stream.NameLifecycleEvents)
	registry.MustRegister(discarded(served))
	book := openJournal(cfg, logger, registry)
	events := stream.NewEdge[*lifecyclev1.Event](stream.Config{Metrics: served, Continues: book.Continues()})
	relister := relist.New(relist.Config{
		Runtime:  client.Runtime,
		Events:   events,
		Journal:  book,
		Tracer:   tel.Tracer,
		Timeout:  cfg.Kubelet.RuntimeRequestTimeout.Duration,
		BootTime: boottime.Now,
		Clock:    clock.RealClock{},
		Logger:   logger,
		Metrics:  relist.NewMetrics(registry),
	})
	runtime := runtimestate.New(runtimestate.Config{
		Endpoint: cfg.Kubelet.ContainerRuntimeEndpoint, Runtime: client.Runtime, Clock: clock.RealClock{}, Logger: logger,
		Changed: func(reason string) { health.Set(waitRuntime, reason) },
	})
	runtime.Expose(registry)
	srv := server.New(relister, events, runtime, clock.RealClock{}, boottime.Now)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return relister.Run(ctx) })
	group.Go(func() error { return book.Run(ctx) })
	group.Go(func() error {
		return service.Watch(ctx, cfg, logger, health, watchdog.Loop{Name: "relist", Check: relister.Stands})
	})
	group.Go(func() error { return runtime.Run(ctx) })
	group.Go(func() error {
		return runtimeevents.Run(ctx, runtimeevents.Config{
			Events:   client.Events,
			Relister: relister,
			Clock:    clock.RealClock{},
			Logger:   logger,
			Metrics:  runtimeevents.NewMetrics(registry),
		})
	})
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
		select {
		case <-relister.Synced():
			health.Set(waitRelist, "")
			calls.Record(&debugv1.PLEGRecord{TakenBoottimeNs: int64(relister.SyncedAt()), Synced: true})
		case <-ctx.Done():
		}
		return nil
	})
	group.Go(func() error {
		defer events.Close()
		return rpc.Serve(ctx, rpc.Config{
			Address: cfg.Listen, Health: health, Logger: logger, Users: cfg.Users,
			Network: cfg.Network, Sockets: cfg.Sockets,
			Register: debugapi.With(
				debugapi.Config{
					Logger: logger, Clock: clock.RealClock{}, RuntimeCalls: calls, PLEGRecord: relister.Recorded,
				}, srv.Register,
			),
			Ready: func() {
				logger.Info("serving", "address", cfg.Listen)
				cfg.Starting.Serving()
				cfg.Systemd.Ready(logger)
			},
		})
	})
	return group.Wait()
}

// openJournal opens the journal of the node's pleg; nil for a read-only pleg, which has its own followers.
func openJournal(cfg nodeconfig.Config, logger *slog.Logger, registry *prometheus.Registry) *journal.Book {
	if cfg.ReadOnly {
		return nil
	}
	path := filepath.Join(cfg.StateDir, journal.FileName)
	cfg.Starting.At("read " + path)
	return journal.Open(journal.Config{
		File:     journal.OnDisk(path),
		Path:     path,
		Observer: observer(logger),
		Clock:    clock.RealClock{},
		Logger:   logger,
		Metrics:  journal.NewMetrics(registry),
	})
}

// observer returns the observer of this process for the journal: another boot has other boot times, and another version
// may observe more. It is empty if the boot is unknown.
func observer(logger *slog.Logger) string {
	boot, err := boottime.Boot()
	if err != nil {
		logger.Warn("every pod is inspected at the next start of pleg", telemetry.KeyError, err)
		return ""
	}
	return boot + " " + buildinfo.Version()
}

// discarded exposes the kubelet's metric for events that a slow subscriber did not receive one by one.
func discarded(served *stream.ServedMetrics) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "kubelet_pleg_discard_events",
		Help: "Events that a slow subscriber did not receive one by one; it then started again from a snapshot of all pods.",
	}, func() float64 { return float64(served.Skipped()) })
}
