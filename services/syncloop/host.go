package syncloop

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/nodefeatures"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/runtimecalls"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// host is shared by the components of this process: the configuration, the connections, and logging, tracing and
// metrics. It is complete before the first component is constructed and does not change later.
type host struct {
	cfg nodeconfig.Config
	// features are the features of the node that it declares.
	features *nodefeatures.Features
	// boot is the ID of this boot of the machine.
	boot string
	// alone is the boot time since which this process has the lock, so that no earlier one writes to the runtime.
	alone    time.Duration
	logger   *slog.Logger
	tracer   trace.Tracer
	registry *prometheus.Registry
	// probeRegistry has the metrics of probes. They have labels for pods and are served on a path of their own.
	probeRegistry *prometheus.Registry
	// requests counts the requests to the API server.
	requests *apiclient.Metrics
	runtime  *cri.Client
	// calls has the calls of runtime for those who watch them.
	calls *runtimecalls.Tap
	peers peers
	// cgroups are those of the machine, whose hierarchies are looked up once.
	cgroups *podcgroups.Machine
	// health is the gRPC health service of this process.
	health *rpc.Health
}

// runtimeNow returns a function that returns the connected runtime service. The function does not wait: it returns an
// error while there is no connection.
func (h *host) runtimeNow(ctx context.Context) func() (internalapi.RuntimeService, error) {
	return func() (internalapi.RuntimeService, error) { return h.runtime.Runtime(noWait(ctx)) }
}

// imagesNow is runtimeNow for the image service.
func (h *host) imagesNow(ctx context.Context) func() (internalapi.ImageManagerService, error) {
	return func() (internalapi.ImageManagerService, error) { return h.runtime.Images(noWait(ctx)) }
}

// noWait returns a context that is done, so that a call with it returns a service only if it is connected already.
func noWait(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

// peers are the connections to the other three processes.
type peers struct {
	configmux, pleg, nodestatus *grpc.ClientConn
}

// dial returns the connections. Each is established at its first use.
func dial(cfg nodeconfig.Config, parts *components.Group) (peers, error) {
	var p peers
	for _, peer := range []struct {
		name nodeconfig.Service
		into **grpc.ClientConn
	}{{nodeconfig.ConfigMux, &p.configmux}, {nodeconfig.PLEG, &p.pleg}, {nodeconfig.NodeStatus, &p.nodestatus}} {
		conn, err := rpc.DialService(peer.name, cfg.Peers.Of(peer.name), cfg.TLS)
		if err != nil {
			return peers{}, fmt.Errorf("reach %s: %w", peer.name, err)
		}
		*peer.into = conn
		parts.OnClose("connection to "+string(peer.name), conn.Close)
	}
	return p, nil
}

// clientOf returns the client of pleg, which may be on another machine.
func clientOf(h *host) *clients.PLEG {
	client := lifecyclev1.NewLifecycleServiceClient(h.peers.pleg)
	if peertls.OnNetwork(h.cfg.Peers.PLEG) {
		return clients.NewRemotePLEG(client, boottime.Now)
	}
	return clients.NewPLEG(client, h.alone)
}

// endObserver returns the observer of pods that are ending.
func endObserver(ctx context.Context, h *host, pleg *clients.PLEG) *clients.Direct {
	return &clients.Direct{
		PLEG: pleg, Runtime: h.runtimeNow(ctx), Clock: clock.RealClock{}, BootTime: boottime.Now, Logger: h.logger,
	}
}

// connectedPLEG is a PLEG that is healthy only if this process also reaches the runtime. Otherwise the first worker
// would fail and back off.
type connectedPLEG struct {
	*clients.PLEG
	runtime *cri.Client
}

// Health implements loop.Pleg. It waits for the runtime's first answer until ctx ends.
func (p connectedPLEG) Health(ctx context.Context) (reasons []string, network string, err error) {
	if _, err := p.runtime.Runtime(ctx); err != nil {
		return []string{err.Error()}, "", nil
	}
	if _, err := p.runtime.Images(ctx); err != nil {
		return []string{err.Error()}, "", nil
	}
	return p.PLEG.Health(ctx)
}
