package syncloop

import (
	"context"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodewatch"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/hostips"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/eviction"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/terminationmessages"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumehealth"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// newStore returns the store of pods.
func newStore(h *host, books books, link *cluster.Link, probes *prober.Manager, devices podDevices,
	health *volumehealth.Monitor, starts *phases.Book) *podstore.Store {
	config := podstore.Config{
		API: link.Statuses, Probes: probes,
		Replaced: books.endings.Replaced, Resizes: books.resizes,
		Devices: allocatedResources(h, devices.plugins, devices.claims), VolumeHealth: health.Of,
		Messages: terminationmessages.Reader{RootDir: h.cfg.RootDir, Logger: h.logger}.Read,
		Clock:    clock.RealClock{}, Tracer: h.tracer, Logger: h.logger, Metrics: podstore.NewMetrics(h.registry),
		Phases: starts, StreamMetrics: stream.NewServedMetrics(h.registry, stream.NamePods),
	}
	if devices.claims != nil {
		config.HoldsClaims = devices.claims.Uses
	}
	return podstore.New(config)
}

// loopConfig has the dependencies of newLoop besides the host.
type loopConfig struct {
	pleg      *clients.PLEG
	probes    *prober.Manager
	workers   *podworkers.Pool
	store     *podstore.Store
	books     books
	manager   *executor.Manager
	events    *podevents.Recorder
	mirrors   cluster.Mirrors
	devices   podDevices
	addresses *hostips.Addresses
	evictor   *eviction.Evictor
	evictions *engineapi.Evictions
}

// newLoop returns the sync loop.
func newLoop(h *host, c loopConfig, parts *components.Group) *loop.Loop {
	l := loop.New(loop.Config{
		Desired: clients.ConfigMux(configv1.NewConfigServiceClient(h.peers.configmux)), Events: c.pleg.Events(),
		Pleg: connectedPLEG{PLEG: c.pleg, runtime: h.runtime}, Probes: c.probes,
		Devices: c.devices,
		Workers: c.workers, Store: c.store, Evictions: c.books.evictions, Endings: c.books.endings,
		Resizes: c.books.resizes, Resizing: resizing(h, c.manager),
		PodFromObserved: executor.PodFromObserved, Leftovers: c.manager.Leftovers, Waiting: h.health.Set,
		Clock: clock.RealClock{}, Tracer: h.tracer, Logger: h.logger, Metrics: loop.NewMetrics(h.registry),
		Resync: h.cfg.Kubelet.SyncFrequency.Duration,
		Node:   nodewatch.Source(nodev1.NewNodeServiceClient(h.peers.nodestatus)), Mirrors: c.mirrors,
		Machine: machineOf(os.DirFS("/"), h.logger), Features: h.features, UnsafeSysctls: h.cfg.Kubelet.AllowedUnsafeSysctls,
		Privileges: privilege.Allowed(h.cfg.HostPrivileges), PodEvents: c.events,
		NodeMetrics:    stream.NewFollowedMetrics(h.registry, stream.NameNode),
		DesiredMetrics: stream.NewFollowedMetrics(h.registry, stream.NamePodUpdates),
		EventsMetrics:  stream.NewFollowedMetrics(h.registry, stream.NameLifecycleEvents),
		Learned:        func(n *v1.Node) { c.addresses.Learn(n) }, Pressing: c.evictor.Pressing, Preempt: c.evictions.Preempt,
	})
	parts.Run("sync loop", l.Run)
	return l
}

// poke returns a function that makes the worker of a pod sync it.
func poke(workers *podworkers.Pool) func(uid types.UID) {
	return func(uid types.UID) { workers.Poke(uid, podworkers.Cause{Kind: podworkers.CauseConfig}) }
}

// watched has the loops of watchLoops.
type watched struct {
	loop     *loop.Loop
	store    *podstore.Store
	workers  *podworkers.Pool
	statuses cluster.Statuses
	volumes  *volumes.Manager
	probes   *prober.Manager
	evictor  *eviction.Evictor
}

// watchLoops checks the loops, and the locks that they share with the workers and the readers. A lock is never held
// while its owner waits for a disk, the runtime or an API server.
func watchLoops(h *host, w watched, parts *components.Group) {
	turned := func() time.Time { return w.loop.Health().LastTurn }
	parts.Run("watchdog", func(ctx context.Context) error {
		return service.Watch(ctx, h.cfg, h.logger, h.health,
			watchdog.Loop{Name: "sync loop", Check: watchdog.Turned(time.Now, turned, watchdog.Limit)},
			watchdog.Loop{Name: "store", Check: func() error { w.store.Len(); return nil }},
			watchdog.Loop{Name: "workers", Check: func() error { w.workers.Census(); return nil }},
			watchdog.Loop{Name: "statuses", Check: func() error { w.statuses.Unsent(); return nil }},
			watchdog.Loop{Name: "volumes", Check: func() error { w.volumes.Count(); return nil }},
			watchdog.Loop{Name: "probes", Check: w.probes.Stands},
			watchdog.Loop{Name: "eviction", Check: w.evictor.Stands},
		)
	})
}
