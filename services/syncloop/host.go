package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
)

// host is what the components of this process have in common: the configuration, the connections to others, and where they log, trace and
// count. It is complete before the first component is constructed, and nothing is added to it later.
type host struct {
	cfg nodeconfig.Config
	// boot names this boot of the machine.
	boot     string
	logger   *slog.Logger
	tracer   trace.Tracer
	registry *prometheus.Registry
	// probeRegistry takes the metrics of probes, which name pods and are served on a path of their own.
	probeRegistry *prometheus.Registry
	// requests counts the requests to the API server.
	requests *apiclient.Metrics
	runtime  *cri.Client
	peers    peers
	// health is what this process says of itself to who asks over gRPC.
	health *rpc.Health
}

// runtimeNow returns the function that returns the connected runtime service, or says at once why there is none.
func (h *host) runtimeNow(ctx context.Context) func() (internalapi.RuntimeService, error) {
	return func() (internalapi.RuntimeService, error) { return h.runtime.Runtime(atOnce(ctx)) }
}

// imagesNow does the same for the image service.
func (h *host) imagesNow(ctx context.Context) func() (internalapi.ImageManagerService, error) {
	return func() (internalapi.ImageManagerService, error) { return h.runtime.Images(atOnce(ctx)) }
}

// atOnce returns a context with which a service is only asked for when it is connected: the call does not wait.
func atOnce(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

// peers are the connections to the other three processes.
type peers struct {
	configmux, pleg, nodestatus *grpc.ClientConn
}

// dial returns the connections; each connects when it is first used.
func dial(to nodeconfig.Peers, parts *components.Group) (peers, error) {
	var p peers
	for _, peer := range []struct {
		name nodeconfig.Service
		into **grpc.ClientConn
	}{{nodeconfig.ConfigMux, &p.configmux}, {nodeconfig.PLEG, &p.pleg}, {nodeconfig.NodeStatus, &p.nodestatus}} {
		conn, err := rpc.Dial(to.Of(peer.name))
		if err != nil {
			return peers{}, fmt.Errorf("reach %s: %w", peer.name, err)
		}
		*peer.into = conn
		parts.OnClose("connection to "+string(peer.name), conn.Close)
	}
	return p, nil
}

// connectedPLEG is healthy when pleg is and this process, too, has reached the runtime: a worker that came before would fail and have to
// wait for its next try.
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
