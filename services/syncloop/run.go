package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/apievents"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/nodewatch"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/kubeletapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/hostips"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/eviction"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/iptableschains"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagegc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	imagepull "github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/logrotate"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/runtimewatch"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/terminationmessages"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// run serves until ctx, the process's context, ends. Its end stops no pod.
func run(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) (err error) {
	cfg.LogUnsupported(tel.Logger)
	self := statedir.Self(string(nodeconfig.SyncLoop))
	if err := enterRoot(cfg.HostRoot); err != nil {
		return err
	}
	if err := cfg.FitMachine(os.DirFS("/")); err != nil {
		return err
	}
	adjustLimits(cfg.Kubelet.MaxOpenFiles, os.DirFS("/"), tel.Logger)
	held, err := statedir.LockAs(cfg.StateDir, self)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Release()) }()
	boot, err := boottime.Boot()
	if err != nil {
		return err
	}
	root := rootMount{dir: cfg.RootDir, file: filepath.Join(cfg.StateDir, rootMountFile), boot: boot, logger: tel.Logger}
	if err := root.share(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.unshare()) }()
	counted := metrics.New(nodeconfig.SyncLoop)
	runtime, err := cri.New(cri.Config{
		Endpoint: cfg.Kubelet.ContainerRuntimeEndpoint, ImageEndpoint: cfg.Kubelet.ImageServiceEndpoint,
		Timeout: cfg.Kubelet.RuntimeRequestTimeout.Duration, Logger: tel.Logger, Registerer: counted.Registry,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runtime.Close()) }()
	cfg.Kubelet.CgroupDriver = cgroupDriver(ctx, runtime, cfg.Kubelet.CgroupDriver, tel.Logger)
	to, err := dial(cfg.Peers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	if to.cluster, err = clusterOf(cfg); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	e, err := newEngine(ctx, cfg, tel, runtime, to, counted)
	if err != nil {
		return err
	}
	e.stop = stop
	return e.serve(ctx)
}

// connections are those to the other three, and to the API server.
type connections struct {
	configmux, pleg, nodestatus *grpc.ClientConn
	// cluster is nil for a node that is standalone.
	cluster *apiclient.Client
}

// dial makes the connections; they connect when they are first used.
func dial(peers nodeconfig.Peers) (to connections, err error) {
	for _, peer := range []struct {
		name nodeconfig.Service
		into **grpc.ClientConn
	}{{nodeconfig.ConfigMux, &to.configmux}, {nodeconfig.PLEG, &to.pleg}, {nodeconfig.NodeStatus, &to.nodestatus}} {
		if *peer.into, err = rpc.Dial(peers.Of(peer.name)); err != nil {
			return connections{}, errors.Join(fmt.Errorf("reach %s: %w", peer.name, err), to.close())
		}
	}
	return to, nil
}

func (c connections) close() error {
	if c.cluster != nil {
		c.cluster.Close()
	}
	var errs []error
	for _, conn := range []*grpc.ClientConn{c.configmux, c.pleg, c.nodestatus} {
		if conn != nil {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}

// engine is everything of syncloop, wired.
type engine struct {
	// stop ends the process's context, under which workers live.
	stop context.CancelFunc
	// boot names this boot of the machine.
	boot    string
	cfg     nodeconfig.Config
	logger  *slog.Logger
	tracer  trace.Tracer
	runtime *cri.Client
	health  *rpc.Health
	manager *executor.Manager
	// addresses are those of the node.
	addresses *hostips.Addresses
	store     *podstore.Store
	events    *podevents.Recorder
	// eventsWay is nil for a node that is standalone.
	eventsWay *apievents.Way
	pool      *podworkers.Pool
	loop      *loop.Loop
	probes    *prober.Manager
	// changes are the pods whose objects, tokens and the like have changed.
	changes *podchanges.Changes
	objects podObjects
	volumes *volumes.Manager
	// identities is nil for a node that is standalone.
	identities *identities
	// watchClasses knows the runtime classes that pods name.
	watchClasses func(context.Context) error
	// watchServices knows the services that containers are told of.
	watchServices func(context.Context) error
	// credentials are what credential provider plugins have for registries.
	credentials *imagecredentials.Providers
	// statuses is nil for a node that is standalone.
	statuses *statuses
	// cgroups is nil when pods have none of their own.
	cgroups *podcgroups.Tree
	stats   *stats.Stats
	evictor *eviction.Evictor
	server  *engineapi.Server
	garbage *imagegc.Collector
	logs    containerLogs
	dead    *containergc.Collector
	metrics *metrics.Metrics
	// probeMetrics are those of probes, which name pods and are not among the others.
	probeMetrics *prometheus.Registry
	// requests counts those to the API server; nil for a node that is standalone.
	requests *apiclient.Metrics
	// readOnly is nil when the read-only API is off, and api when the authenticated one is.
	readOnly net.Listener
	api      *nodeAPI
}

func newEngine(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry, runtime *cri.Client, to connections, counted *metrics.Metrics) (*engine, error) {
	book, err := evictionbook.Open(filepath.Join(cfg.StateDir, "evictions.json"))
	if err != nil {
		return nil, err
	}
	boot, err := boottime.Boot()
	if err != nil {
		return nil, err
	}
	if err := book.Booted(boot); err != nil {
		return nil, err
	}
	ends, err := gracebook.Open(gracebook.Config{Dir: filepath.Join(cfg.StateDir, "endings"), Boot: boot, Now: boottime.Now})
	if err != nil {
		return nil, err
	}
	promises, err := resizes.Open(filepath.Join(cfg.StateDir, "resizes"), tel.Logger)
	if err != nil {
		return nil, err
	}
	e := &engine{boot: boot, cfg: cfg, logger: tel.Logger, tracer: tel.Tracer, runtime: runtime, health: rpc.NewHealth(), metrics: counted, probeMetrics: prometheus.NewRegistry()}
	if cfg.Kubeconfig != "" {
		e.requests = apiclient.NewMetrics(e.metrics.Registry)
		to.cluster.CountIn(e.requests)
	}
	realClock := clock.RealClock{}
	imageService := func() (internalapi.ImageManagerService, error) { return runtime.Images(atOnce(ctx)) }
	e.addresses = hostips.New(func() []string { return guessedAddresses(cfg) })
	if err := e.tellEvents(tel); err != nil {
		return nil, err
	}
	if e.probes, err = newProbes(ctx, cfg, tel, runtime, e.events, probecalls.NewMetrics(e.probeMetrics)); err != nil {
		return nil, err
	}
	starts := phases.New(phases.NewMetrics(e.metrics.Registry))
	askNode := clients.Node(nodev1.NewNodeServiceClient(to.nodestatus))
	e.changes = podchanges.New()
	e.objects = objectsOf(ctx, e, tel, to)
	e.identities = identitiesOf(e, tel, to, askNode)
	if e.credentials, err = credentialProviders(ctx, e, tel, to); err != nil {
		return nil, err
	}
	if e.volumes, err = newVolumes(cfg, tel, askNode, e); err != nil {
		return nil, err
	}
	config := executor.Config{
		Runtime: func() (internalapi.RuntimeService, error) { return runtime.Runtime(atOnce(ctx)) }, Images: imageService,
		Clock: realClock, Tracer: tel.Tracer, Logger: tel.Logger, NodeName: cfg.NodeName, HostIPs: e.addresses,
		Node: askNode, NodeFile: filepath.Join(cfg.StateDir, "told-node.json"),
		UserIDs:    userIDs(cfg).Of,
		PodLogsDir: cfg.Kubelet.PodLogsDir, RootDir: cfg.RootDir, CgroupDriver: cfg.Kubelet.CgroupDriver, Kubelet: &cfg.Kubelet, Endings: ends, Resizes: promises, Metrics: executor.NewMetrics(e.metrics.Registry),
		ImageMetrics: images.NewMetrics(e.metrics.Registry), Events: e.events, Phases: starts, Credentials: imagepull.NewDockerConfigs(cfg.RootDir, homeDir(), tel.Logger).For, Providers: e.credentials.For,
		Liveness: e.probes.Liveness, Startup: e.probes.Startup, Objects: e.objects, Volumes: e.podVolumes(),
	}
	config.RuntimeClasses, e.watchClasses = runtimeClassesOf(e, to)
	config.Services, e.watchServices = servicesOf(e, to)
	if e.statuses, err = statusesOf(e, tel); err != nil {
		return nil, err
	}
	e.store = podstore.New(podstore.Config{
		API: e.statuses.store(), Generate: podstatus.Generate, Probes: e.probes, Replaced: ends.Replaced, Resizes: promises, Messages: terminationmessages.Reader{RootDir: cfg.RootDir, Logger: tel.Logger}.Read, Clock: realClock, Tracer: tel.Tracer, Logger: tel.Logger, Metrics: podstore.NewMetrics(e.metrics.Registry),
		Phases: starts, StreamMetrics: stream.NewServedMetrics(e.metrics.Registry, stream.NamePods),
	})
	e.addresses.Tell(e.store.SetHostIPs)
	if e.cgroups = e.cgroupTree(askNode, tel.Logger, podcgroups.NewMetrics(e.metrics.Registry)); e.cgroups != nil {
		config.Cgroups = e.cgroups
	}
	queue := containergc.NewQueue()
	config.Garbage = queue
	e.manager = executor.New(config)
	e.dead = deadCollector(queue, e.manager, e.store, book, containergc.NewMetrics(e.metrics.Registry), e.events, tel.Logger)
	pleg := clients.NewPLEG(lifecyclev1.NewLifecycleServiceClient(to.pleg))
	resync := cfg.Kubelet.SyncFrequency.Duration
	e.pool = podworkers.NewPool(ctx, podworkers.Config{
		Runtime: e.manager, Observer: pleg, Statuses: e.store, Endings: ends, Resizes: promises, Clock: realClock, BootTime: boottime.Now,
		Tracer: tel.Tracer, Logger: tel.Logger, Resync: resync, Metrics: podworkers.NewMetrics(e.metrics.Registry), Events: e.events, Phases: starts,
	})
	e.statuses.mirror(e, tel, e.pool, e.store)
	evicter := &engineapi.Evictions{Book: book, Store: e.store, Workers: e.pool, Metrics: engineapi.NewMetrics(e.metrics.Registry), Events: e.events}
	e.stats = e.newStats()
	e.garbage = collectorOf(cfg, tel, runtime, e.manager, imagegc.NewMetrics(e.metrics.Registry), e.events)
	e.evictor = e.newEvictor(to.cluster != nil, evicter)
	e.loop = loop.New(loop.Config{
		Desired: clients.ConfigMux(configv1.NewConfigServiceClient(to.configmux)), Events: pleg.Events(),
		Pleg: connectedPLEG{PLEG: pleg, runtime: runtime}, Probes: e.probes,
		Workers: e.pool, Store: e.store, Evictions: book, Endings: ends, Resizes: promises, Resizing: e.resizing(), PodFromObserved: executor.PodFromObserved, Leftovers: e.manager.Leftovers,
		Waiting: e.health.Set, Clock: realClock, Tracer: tel.Tracer, Logger: tel.Logger, Resync: resync, Metrics: loop.NewMetrics(e.metrics.Registry),
		Node: nodewatch.Source(nodev1.NewNodeServiceClient(to.nodestatus)), Mirrors: e.statuses.loop(),
		Machine: machineOf(os.DirFS("/"), tel.Logger), UnsafeSysctls: cfg.Kubelet.AllowedUnsafeSysctls, PodEvents: e.events,
		NodeMetrics:    stream.NewFollowedMetrics(e.metrics.Registry, stream.NameNode),
		DesiredMetrics: stream.NewFollowedMetrics(e.metrics.Registry, stream.NamePodUpdates),
		EventsMetrics:  stream.NewFollowedMetrics(e.metrics.Registry, stream.NameLifecycleEvents),
		Learned:        e.addresses.Learn,
		Pressing:       e.evictor.Pressing,
		Preempt:        evicter.Preempt,
	})
	e.server = engineapi.New(engineapi.Config{
		Store: e.store, Workers: e.pool, Probes: e.probes.Describe, Volumes: e.volumes.Describe, Health: e.loop.Health, Images: imageService, Events: e.events.Stream(),
		Evicter: evicter, Shutdown: shutdownOf(e, book, boot), Readings: e.stats.Readings,
	})
	if e.logs, err = containerLogsOf(ctx, cfg, e.store, runtime, logrotate.NewMetrics(e.metrics.Registry), tel.Logger); err != nil {
		return nil, err
	}
	resizes.Expose(e.metrics.Registry, func() resizes.Counts { return promises.Count(e.store.Pod) })
	logrotate.Expose(e.metrics.Registry, func() []logrotate.Used { return logUsageOf(e.store) })
	if socket := cfg.ReadOnlySocket(); socket.Address != "" {
		if e.readOnly, err = kubeletapi.ListenReadOnly(ctx, cfg.Sockets, socket, tel.Logger); err != nil {
			return nil, err
		}
	}
	if e.api, err = nodeAPIOf(ctx, e, askNode); err != nil {
		return nil, err
	}
	return e, nil
}

// serve runs every component until ctx ends.
func (e *engine) serve(ctx context.Context) error {
	parts := components.New(e.logger)
	parts.Run("runtime connection", e.watchRuntime)
	parts.Run("events to the API server", e.eventsWay.Run)
	parts.Run("OOM kills", e.watchKills)
	parts.Run("node addresses", func(ctx context.Context) error { return e.addresses.Run(ctx, clock.RealClock{}) })
	parts.Run("sync loop", e.loop.Run)
	parts.Run("pod changes", func(ctx context.Context) error { return e.changes.Run(ctx, e.volumes.Refresh, e.poke) })
	parts.Run("probes", e.probes.Run)
	parts.Run("config maps and secrets", e.objects.Run)
	parts.Run("volumes", e.volumes.Run)
	parts.Run("pod statuses", e.statuses.run)
	parts.Run("pod identities", e.identities.run)
	parts.Run("credential providers", e.credentials.Run)
	parts.Run("runtime classes", e.watchClasses)
	parts.Run("services", e.watchServices)
	if e.cgroups != nil {
		parts.Run("pod cgroups", e.cgroups.Run)
	}
	parts.Run("statistics", e.stats.Run)
	parts.Run("eviction", e.evictor.Run)
	parts.Run("image garbage", e.garbage.Run)
	parts.Run("pull records", func(ctx context.Context) error { return e.manager.Images().Recover(ctx, e.runtime.Images) })
	parts.Run("log links", e.logs.links.Run)
	if e.logs.rotator != nil {
		parts.Run("log rotation", e.logs.rotator.Run)
	}
	parts.Run("container garbage", e.dead.Run)
	if *e.cfg.Kubelet.MakeIPTablesUtilChains {
		parts.Run("iptables chains", iptableschains.New(iptableschains.Exec, clock.RealClock{}, e.logger).Run)
	}
	e.serveAPIs(parts)
	err := parts.Wait(ctx)
	e.stop()
	e.pool.Wait()
	return err
}

// poke has the worker of a pod look at it.
func (e *engine) poke(uid types.UID) {
	e.pool.Poke(uid, podworkers.Cause{Kind: podworkers.CauseConfig})
}

// serveAPIs adds what others reach.
func (e *engine) serveAPIs(parts *components.Group) {
	parts.Run("EngineService", func(ctx context.Context) error {
		defer e.store.Close()
		defer e.events.Close()
		return rpc.Serve(ctx, rpc.Config{
			Address: e.cfg.Listen, Health: e.health, Logger: e.logger, AllowedUIDs: e.cfg.AllowedUIDs,
			Register: func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, e.server) },
			Ready:    e.serving,
		})
	})
	parts.Run("metrics", func(ctx context.Context) error {
		return metrics.Serve(ctx, metrics.ServeConfig{
			Address: e.cfg.MetricsListen, Sockets: e.cfg.Sockets, AllowedUIDs: e.cfg.AllowedUIDs, Registry: e.metrics.Registry, Logger: e.logger,
			More: map[string]prometheus.Gatherer{metrics.ProbesPath: e.probeMetrics},
		})
	})
	common := kubeletapi.Config{
		Pods: e.store, Health: e.loop.Health, Start: kubeletapi.NewStart(), Report: e.stats.Report,
		Details:  stats.DetailsOf(podcgroups.NewMachine(e.cfg.Kubelet.CgroupDriver, clock.RealClock{})),
		Gatherer: e.together(), Probes: e.probeMetrics, Metrics: kubeletapi.NewMetrics(e.metrics.Registry), Logger: e.logger,
	}
	parts.Run("waiting requests", func(ctx context.Context) error { return common.Start.Run(ctx, e.awaitReady) })
	if e.readOnly != nil {
		parts.Run("read-only API", func(ctx context.Context) error {
			e.awaitTurn(ctx)
			return httpserve.Until(ctx, e.readOnly, kubeletapi.ReadOnly(e.cfg.NodeName, common), e.logger)
		})
	}
	parts.Run("authenticated API", func(ctx context.Context) error {
		e.awaitTurn(ctx)
		return e.api.run(ctx, e, common)
	})
	parts.Run("pod resources", e.tellPodResources)
}

// watchRuntime says in the health whether this process reaches the runtime.
func (e *engine) watchRuntime(ctx context.Context) error {
	return runtimewatch.Run(ctx, runtimewatch.Config{
		Endpoint: e.cfg.Kubelet.ContainerRuntimeEndpoint, Runtime: e.runtime.Runtime, Images: e.runtime.Images,
		Named: e.store.SetRuntimeName, CgroupDriver: e.cfg.Kubelet.CgroupDriver, Waiting: e.health.Set, Clock: clock.RealClock{},
	})
}

// connectedPLEG is healthy when pleg is and this process, too, has reached the runtime: a worker that came before would
// fail and have to wait for its next try.
type connectedPLEG struct {
	*clients.PLEG
	runtime *cri.Client
}

// Health implements loop.Pleg. It waits, within ctx, for the runtime's first answers.
func (p connectedPLEG) Health(ctx context.Context) (reasons []string, network string, err error) {
	if _, err := p.runtime.Runtime(ctx); err != nil {
		return []string{err.Error()}, "", nil
	}
	if _, err := p.runtime.Images(ctx); err != nil {
		return []string{err.Error()}, "", nil
	}
	return p.PLEG.Health(ctx)
}

// ended makes no error of the end of the process.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// atOnce is a context for asking whether a service is connected: it does not wait.
func atOnce(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

// guessedAddresses returns the addresses of the node as long as nodestatus has not said them: those that were given, else that of the
// default route; none when there is neither, as on a machine without a network.
func guessedAddresses(cfg nodeconfig.Config) []string {
	if cfg.NodeIP != "" {
		return strings.Split(cfg.NodeIP, ",")
	}
	if ip, err := utilnet.ChooseHostInterface(); err == nil {
		return []string{ip.String()}
	}
	return nil
}
