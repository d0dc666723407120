package syncloop

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/certexpiry"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/debugapi"
	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/kubeletapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/podresources"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/podsapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
)

// apiConfig has the dependencies of serveAPIs besides the host.
type apiConfig struct {
	engine  *engineapi.Server
	askNode func(context.Context) (*v1.Node, error)
	store   *podstore.Store
	// resources has what pods have for themselves.
	resources podresources.Config
	loop      *loop.Loop
	usage     *stats.Stats
	events    *podevents.Recorder
}

// serveAPIs adds the servers of this process: EngineService, metrics, the authenticated and the read-only HTTP API, the
// pod-resources API, and the pods API.
func serveAPIs(ctx context.Context, h *host, c apiConfig, parts *components.Group) error {
	parts.Run("EngineService", func(ctx context.Context) error {
		defer c.store.Close() // ends the streams of subscribers
		defer c.events.Close()
		return rpc.Serve(ctx, rpc.Config{
			Address: h.cfg.Listen, Health: h.health, Logger: h.logger, Users: h.cfg.Users,
			Network: h.cfg.Network, Sockets: h.cfg.Sockets,
			Register: debugapi.With(
				debugapi.Config{
					Logger: h.logger, Clock: clock.RealClock{}, RuntimeCalls: h.calls,
					BlockProfileRate: contentionRate(&h.cfg.Kubelet),
				},
				func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, c.engine) },
			),
			Ready: func() {
				h.logger.Info("serving", "address", h.cfg.Listen)
				h.cfg.Starting.Serving()
				h.cfg.Systemd.Ready(h.logger)
			},
		})
	})
	if shown, ok := certexpiry.OfFiles(h.cfg.TLS); ok {
		parts.Run("certificate of the network", certexpiry.New(shown, h.registry, clock.RealClock{}, h.logger).Run)
	}
	parts.Run("metrics", func(ctx context.Context) error {
		return metrics.Serve(ctx, metrics.ServeConfig{
			Address: h.cfg.MetricsListen, Sockets: h.cfg.Sockets, AllowedUIDs: h.cfg.MetricsUIDs(),
			Registry: h.registry, Logger: h.logger,
			More: map[string]prometheus.Gatherer{metrics.ProbesPath: h.probeRegistry},
		})
	})
	common := kubeletapi.Config{
		Pods: c.store, Health: c.loop.Health, Start: kubeletapi.NewStart(), Report: c.usage.Report,
		Details:  stats.DetailsOf(h.cgroups, clock.RealClock{}),
		Gatherer: nodeMetrics(h), Probes: h.probeRegistry, Metrics: kubeletapi.NewMetrics(h.registry), Logger: h.logger,
	}
	parts.Run("waiting requests", func(ctx context.Context) error {
		return common.Start.Run(ctx, func(ctx context.Context) { awaitPods(ctx, h, c.store) })
	})
	if socket := h.cfg.ReadOnlySocket(); socket.Address != "" {
		listener, err := kubeletapi.ListenReadOnly(ctx, h.cfg.Sockets, socket, h.logger)
		if err != nil {
			return err
		}
		parts.Run("read-only API", func(ctx context.Context) error {
			await(ctx, c.loop.Begun())
			return httpserve.Until(ctx, listener, kubeletapi.ReadOnly(h.cfg.NodeName, common), h.logger)
		})
	}
	addPodResources(h, c.resources, parts)
	addPodsAPI(h, c.store, parts)
	return addNodeAPI(ctx, h, c.askNode, common, c.loop.Begun(), parts)
}

// await waits until begun is closed or ctx ends. The HTTP API is served from the loop's first turn on, so that a health
// check does not fail during the start; connections wait until then.
func await(ctx context.Context, begun <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-begun:
	}
}

// awaitPods waits until the pods are known and the runtime has answered, or until ctx ends.
func awaitPods(ctx context.Context, h *host, store *podstore.Store) {
	select {
	case <-ctx.Done():
	case <-store.Known():
		_, _ = h.runtime.Runtime(ctx) // a request that needs the runtime reports the error
	}
}

// podResources returns the configuration of the pod-resources API.
func podResources(h *host, store *podstore.Store, devices podDevices) podresources.Config {
	path := podresources.Socket(h.cfg.RootDir)
	return podresources.Config{
		Path: path, Pods: store.Active, Devices: devices, Claims: claimsOf(devices.claims),
		Metrics: podresources.NewMetrics(h.registry), Logger: h.logger, Clock: clock.RealClock{},
	}
}

// addPodResources adds the pod-resources API. A node without it still runs pods, because they do not need it.
func addPodResources(h *host, config podresources.Config, parts *components.Group) {
	parts.Run("pod resources", func(ctx context.Context) error {
		if err := podresources.Serve(ctx, config); err != nil {
			h.logger.Warn("the pod-resources API is not served; fix the cause and restart syncloop",
				telemetry.KeyFile, config.Path, telemetry.KeyError, err)
		}
		return nil
	})
}

// addPodsAPI adds the pods API, unless the configuration turns it off. A node without it still runs pods, because they
// do not need it.
func addPodsAPI(h *host, store *podstore.Store, parts *components.Group) {
	if !nodeconfig.ServesPodsAPI(&h.cfg.Kubelet) {
		return
	}
	path := podsapi.Socket(h.cfg.RootDir)
	config := podsapi.Config{
		Path: path, Pods: store, Metrics: podsapi.NewMetrics(h.registry), Logger: h.logger, Clock: clock.RealClock{},
	}
	parts.Run("pods API", func(ctx context.Context) error {
		if err := podsapi.Serve(ctx, config); err != nil {
			h.logger.Warn("the pods API is not served; fix the cause and restart syncloop",
				telemetry.KeyFile, path, telemetry.KeyError, err)
		}
		return nil
	})
}
