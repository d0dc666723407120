package syncloop

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/clock"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/nodefeatures"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/runtimecalls"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/podresources"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/hostips"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/shutdown"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/volumelimits"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/inventory"
)

// run serves until ctx, the process's context, ends. No pod stops then.
func run(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) (err error) {
	parts := components.New(tel.Logger)
	defer func() { err = errors.Join(err, parts.Close()) }()
	h, err := newHost(ctx, cfg, tel, parts)
	if err != nil {
		return err
	}
	if err := construct(ctx, h, parts); err != nil {
		return err
	}
	return parts.Wait(ctx)
}

// newHost locks the state directory, prepares the machine, and connects to the runtime and the other processes.
func newHost(
	ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry, parts *components.Group,
) (*host, error) {
	cfg.LogUnsupported(tel.Logger)
	if err := enterRoot(cfg.HostRoot); err != nil {
		return nil, err
	}
	if err := cfg.FitMachine(os.DirFS("/")); err != nil {
		return nil, err
	}
	adjustLimits(cfg.Kubelet.MaxOpenFiles, os.DirFS("/"), tel.Logger)
	cfg.Starting.At("lock " + cfg.StateDir)
	held, err := statedir.LockAs(cfg.StateDir, statedir.Self(string(nodeconfig.SyncLoop)))
	if err != nil {
		return nil, err
	}
	alone := boottime.Now()
	parts.OnClose("state directory", held.Release)
	features, err := nodefeatures.Of(&cfg.Kubelet, buildinfo.Kubernetes())
	if err != nil {
		return nil, err
	}
	boot, err := boottime.Boot()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(cfg.StateDir, rootMountFile)
	root := rootMount{dir: cfg.RootDir, file: file, boot: boot, logger: tel.Logger}
	cfg.Starting.At("make " + cfg.RootDir + " a shared mount")
	if err := root.share(); err != nil {
		return nil, err
	}
	parts.OnClose("root directory", root.unshare)
	registry := metrics.New(nodeconfig.SyncLoop).Registry
	calls := &runtimecalls.Tap{}
	runtime, err := cri.New(cri.Config{
		Endpoint: cfg.Kubelet.ContainerRuntimeEndpoint, ImageEndpoint: cfg.Kubelet.ImageServiceEndpoint,
		Timeout: cfg.Kubelet.RuntimeRequestTimeout.Duration, Logger: tel.Logger, Registerer: registry, Calls: calls,
	})
	if err != nil {
		return nil, err
	}
	parts.OnClose("connection to the runtime", runtime.Close)
	cfg.Starting.At("ask the runtime at " + cfg.Kubelet.ContainerRuntimeEndpoint + " for its cgroup driver")
	cfg.Kubelet.CgroupDriver = cgroupDriver(ctx, runtime, cfg.Kubelet.CgroupDriver, tel.Logger)
	peers, err := dial(cfg, parts)
	if err != nil {
		return nil, err
	}
	return &host{
		cfg: cfg, features: features, boot: boot, alone: alone, logger: tel.Logger, tracer: tel.Tracer, registry: registry,
		probeRegistry: prometheus.NewRegistry(), requests: apiclient.NewMetrics(registry),
		runtime: runtime, calls: calls, peers: peers, health: rpc.NewHealth(),
		cgroups: podcgroups.NewMachine(cfg.Kubelet.CgroupDriver, clock.RealClock{}),
	}, nil
}

// construct constructs the components in the order of their dependencies, and adds to parts those that run or must be
// closed. ctx is the process's context.
func construct(ctx context.Context, h *host, parts *components.Group) error {
	ctx, stop := context.WithCancel(ctx)
	parts.OnClose("context of the process", func() error {
		stop()
		return nil
	})
	books := openBooks(h, parts)
	h.cfg.Starting.At("read the records of devices, volumes and probes in " + h.cfg.StateDir + " and " + h.cfg.RootDir)
	events, err := newEvents(h, parts)
	if err != nil {
		return err
	}
	askNode := clients.Node(nodev1.NewNodeServiceClient(h.peers.nodestatus))
	changes := podchanges.New()
	link, err := newLink(ctx, h, askNode, changes, events, parts)
	if err != nil {
		return err
	}
	probes := newProbes(ctx, h, events, parts)
	published := inventory.New(stream.NewServedMetrics(h.registry, stream.NameStorage))
	devices, err := newPodDevices(h, askNode, published.Changed, changes.Note(podchanges.Sync), parts)
	if err != nil {
		return err
	}
	storage, err := newStorage(h, askNode, link, changes, events, devices, published, parts)
	if err != nil {
		return err
	}
	volumes, err := newVolumes(h, askNode, link, events, storage, parts)
	if err != nil {
		return err
	}
	starts := phases.New(phases.NewMetrics(h.registry))
	addresses := hostips.New(func() []string { return fallbackAddresses(ctx, h.cfg) })
	store := newStore(h, books, link, probes, devices, storage.health, starts)
	watchVolumeHealth(h, storage, volumes, store, published.Changed, parts)
	addresses.OnChange(store.SetHostIPs)
	resizes.Expose(h.registry, func() resizes.Counts { return books.resizes.Count(store.Pod) })
	garbage := containergc.NewQueue()
	manager, err := newManager(ctx, h, managerConfig{
		askNode: askNode, addresses: addresses, books: books, link: link, events: events, probes: probes,
		volumes: volumes, devices: devices, starts: starts, store: store, garbage: garbage,
	}, parts)
	if err != nil {
		return err
	}
	addresses.Detect() // unless the manager has read those of the last Node
	pleg := clientOf(h)
	workers := podworkers.NewPool(ctx, podworkers.Config{
		Runtime: manager, Observer: pleg, EndObserver: endObserver(ctx, h, pleg),
		Statuses: store, Endings: books.endings, Resizes: books.resizes,
		Clock: clock.RealClock{}, BootTime: boottime.Now, Tracer: h.tracer, Logger: h.logger,
		Resync:  h.cfg.Kubelet.SyncFrequency.Duration,
		Metrics: podworkers.NewMetrics(h.registry), Events: events, Phases: starts,
		Volumes: volumes.Describe,
	})
	parts.OnClose("pod workers", func() error {
		stop()
		workers.Wait()
		return nil
	})
	evictions := &engineapi.Evictions{
		Book: books.evictions, Store: store, Workers: workers, Metrics: engineapi.NewMetrics(h.registry), Events: events,
	}
	usage := newStats(h, store, volumes, parts)
	evictor := newEvictor(h, evictorConfig{
		usage: usage, store: store, manager: manager, garbage: garbage,
		book: books.evictions, evictions: evictions, events: events,
	}, parts)
	syncLoop := newLoop(h, loopConfig{
		pleg: pleg, probes: probes, workers: workers, store: store, books: books, manager: manager, events: events,
		mirrors: link.Mirrors(func(name types.NamespacedName, except types.UID) bool {
			return workers.OtherHas(name, except) || store.OtherRuns(name, except)
		}),
		devices: devices, addresses: addresses, evictor: evictor, evictions: evictions,
	}, parts)
	if err := watchLogs(ctx, h, store, parts); err != nil {
		return err
	}
	parts.Run("volume limits", func(ctx context.Context) error {
		return volumelimits.Run(ctx, volumelimits.Config{
			Rejected: volumes.Rejected, Reject: evictions.Reject, Count: syncLoop.CountRejected,
			Refresh: storage.drivers.Refresh,
			Clock:   clock.RealClock{}, Logger: h.logger,
		})
	})
	reconcileCPUs(ctx, h, devices.Allocator, store, parts)
	watchMachine(h, store, addresses, events, parts)
	damaged := watchFiles(h, events, parts)
	watchLoops(h, watched{
		loop: syncLoop, store: store, workers: workers, statuses: link.Statuses, volumes: volumes, probes: probes,
		evictor: evictor,
	}, parts)
	parts.Run("retries of volumes", func(ctx context.Context) error {
		return storage.retry(ctx, volumes, changes.Note(podchanges.Sync))
	})
	parts.Run("pod changes", func(ctx context.Context) error { return changes.Run(ctx, volumes.Refresh, poke(workers)) })
	held := podResources(h, store, devices)
	engine := engineapi.New(engineapi.Config{
		Store: store, Workers: workers, Probes: probes.Describe, Volumes: volumes.Describe,
		Health: healthOf(syncLoop, damaged, volumes.Unread, storage.volumes.Unread, unlistedVolumes(link)),
		Images: h.imagesNow(ctx), Events: events.Stream(), Storage: published.Source, Evicter: evictions,
		Claims: describeClaims(link), Released: describeReleased(link), Forget: forgetReleased(link),
		AllVolumes: volumes.List, Unused: storage.volumes.Unused,
		Shutdown: shutdown.New(shutdown.Config{
			Store: store, Book: books.evictions, Workers: workers, Boot: h.boot, Unsent: link.Statuses.Unsent,
			Clock: clock.RealClock{},
		}),
		Readings: usage.Readings, Resources: func() (*podresourcesv1.ListPodResourcesResponse, error) {
			return podresources.Listed(held)
		},
	})
	return serveAPIs(ctx, h, apiConfig{
		engine: engine, askNode: askNode, store: store, resources: held, loop: syncLoop, usage: usage, events: events,
	}, parts)
}
