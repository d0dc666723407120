package configmux

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/nodewatch"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
)

// apiPodsFile, in the state directory, is the checkpoint of the API server's pods.
const apiPodsFile = "api-pods"

// membership holds the clients of a node that belongs to a cluster. It is nil for a standalone node, and for a replay.
type membership struct {
	client     *apiclient.Client
	nodestatus *grpc.ClientConn
}

// join creates the clients of the API server and of nodestatus, which need not be reachable yet.
func join(cfg nodeconfig.Config) (*membership, error) {
	if cfg.Kubeconfig == "" || cfg.Replay != "" {
		return nil, nil
	}
	client, err := apiclient.New(apiclient.ConfigOf(nodeconfig.ConfigMux, cfg))
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	nodestatus, err := rpc.DialService(nodeconfig.NodeStatus, cfg.Peers.NodeStatus, cfg.TLS)
	if err != nil {
		return nil, fmt.Errorf("create the client of nodestatus: %w", err)
	}
	return &membership{client: client, nodestatus: nodestatus}, nil
}

// leave closes the connections. Call it after every user of them has ended.
func (m *membership) leave() error {
	if m == nil {
		return nil
	}
	m.client.Close()
	return m.nodestatus.Close()
}

// source returns the source of the API server's pods.
func (m *membership) source(
	cfg nodeconfig.Config,
	health *rpc.Health,
	counts *apisource.Metrics,
	tracer trace.Tracer,
	logger *slog.Logger,
) *apisource.Source {
	return apisource.New(apisource.Config{
		Client:     m.client.Core,
		Server:     m.client.Server,
		Node:       cfg.NodeName,
		Allowed:    privilege.Allowed(cfg.HostPrivileges),
		Nodes:      nodewatch.Source(nodev1.NewNodeServiceClient(m.nodestatus)),
		Checkpoint: filepath.Join(cfg.StateDir, apiPodsFile),
		Health:     health,
		Clock:      clock.RealClock{},
		Tracer:     tracer,
		Logger:     logger,
		Metrics:    counts,
	})
}
