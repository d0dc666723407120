package apisource

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// NodeStatus returns nodestatus' stream of the Node. Subscribing waits for a nodestatus that is away.
func NodeStatus(client nodev1.NodeServiceClient) stream.Source[*nodev1.Node] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*nodev1.Node], error) {
		watch, err := client.WatchNode(ctx, &nodev1.WatchNodeRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			return nil, fmt.Errorf("watch nodestatus' Node: %w", err)
		}
		return func() (*streamv1.Frame, *nodev1.Node, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetNode(), err
		}, nil
	})
}

// awaitNode returns true once nodestatus has said that the API server has the Node, and false when ctx ends first. An API
// server authorizes a node that it knows; and the pods of one that is about to be registered anew are not its own.
func awaitNode(ctx context.Context, cfg Config) bool {
	const what = string(nodeconfig.NodeStatus)
	cfg.Health.Set(what, "waiting for nodestatus, which is to say that the API server has this Node: see that it runs")
	waiting, found := context.WithCancel(ctx)
	defer found()
	synced := false
	handle := func(c stream.Change[*nodev1.Node]) {
		switch {
		case c.Op == stream.OpRemove || synced:
		case c.New.GetSynced():
			if c.New.GetStandalone() {
				cfg.Logger.Warn("nodestatus registers this node with no API server, and this process is to take pods from one: give both the same --kubeconfig",
					telemetry.KeySource, Name)
			}
			synced = true
			found()
		default:
			cfg.Health.Set(what, "waiting for the API server to have this Node, which nodestatus has not registered yet: see its health")
		}
	}
	// It ends with its context, which is no failure.
	_ = stream.Follow(waiting, stream.FollowConfig[*nodev1.Node]{
		Source: cfg.Nodes, Handle: handle, Clock: cfg.Clock, Logger: cfg.Logger, Name: stream.NameNode,
	})
	if !synced {
		return false
	}
	cfg.Health.Set(what, "")
	return true
}
