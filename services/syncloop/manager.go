package syncloop

import (
	"context"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/hostips"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// managerConfig has the dependencies of newManager besides the host.
type managerConfig struct {
	askNode   func(context.Context) (*v1.Node, error)
	addresses *hostips.Addresses
	books     books
	link      *cluster.Link
	events    *podevents.Recorder
	probes    *prober.Manager
	volumes   *volumes.Manager
	devices   podDevices
	starts    *phases.Book
	store     *podstore.Store
	garbage   *containergc.Queue
}

// newManager returns the manager of pods in the runtime, with images, cgroups and user namespaces.
func newManager(ctx context.Context, h *host, c managerConfig, parts *components.Group) (*executor.Manager, error) {
	credentials, err := newCredentialProviders(ctx, h, c.link, parts)
	if err != nil {
		return nil, err
	}
	config := executor.Config{
		Runtime: h.runtimeNow(ctx), Images: h.imagesNow(ctx), Clock: clock.RealClock{}, Tracer: h.tracer, Logger: h.logger,
		Metrics: executor.NewMetrics(h.registry), ImageMetrics: images.NewMetrics(h.registry),
		Phases: c.starts, Events: c.events, NodeName: h.cfg.NodeName, HostIPs: c.addresses,
		Node: c.askNode, NodeFile: filepath.Join(h.cfg.StateDir, "told-node.json"),
		PodLogsDir: h.cfg.Kubelet.PodLogsDir, RootDir: h.cfg.RootDir,
		CgroupDriver: h.cfg.Kubelet.CgroupDriver, Kubelet: &h.cfg.Kubelet,
		MemoryQoS: memoryQoS(&h.cfg.Kubelet), NotForPods: reservations(&h.cfg.Kubelet),
		Credentials: images.NewDockerConfigs(h.cfg.RootDir, homeDir(), h.logger).For, Providers: credentials.For,
		Liveness: c.probes.Liveness, Startup: c.probes.Startup,
		Endings: c.books.endings, Resizes: c.books.resizes, Garbage: c.garbage,
		UserIDs: userIDs(h.cfg).Of, Objects: c.link.Objects, RuntimeClasses: c.link.RuntimeClasses, Services: c.link.Services,
		Claims:  c.link.Claims,
		Devices: c.devices.Allocator,
		Volumes: c.volumes, Issued: []executor.Issued{
			{Name: "service account tokens", Forget: c.link.Tokens.Forget},
			{Name: "trust bundles", Forget: c.link.TrustBundles.Forget},
			{Name: "certificates", Forget: c.link.Certificates.Forget},
		},
	}
	if c.devices.claims != nil {
		config.ResourceClaims = c.devices.claims
	}
	counts := podcgroups.NewMetrics(h.registry)
	if *h.cfg.Kubelet.CgroupsPerQOS {
		tree := newCgroups(h, c.askNode, c.store, c.events, c.devices.Allocator, counts)
		config.Cgroups = tree
		parts.Run("pod cgroups", tree.Run)
	}
	manager := executor.New(config)
	parts.Run("pull records", func(ctx context.Context) error { return manager.Images().Recover(ctx, h.runtime.Images) })
	return manager, nil
}
