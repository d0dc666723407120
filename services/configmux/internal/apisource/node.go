package apisource

import (
	"context"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// awaitNode returns true when nodestatus reports that the API server has the Node, and false if ctx ends first. An API
// server authorizes only a node that it knows, and pods bound to a Node that is about to be registered again belong to
// its predecessor.
func awaitNode(ctx context.Context, cfg Config) bool {
	const part = string(nodeconfig.NodeStatus)
	cfg.Health.Set(part, "waiting for nodestatus to report that the API server has this Node: check that it runs")
	waiting, found := context.WithCancel(ctx)
	defer found()
	synced := false
	handle := func(c stream.Change[*nodev1.Node]) {
		switch {
		case c.Op == stream.OpRemove || synced:
		case c.New.GetSynced():
			if c.New.GetStandalone() {
				cfg.Logger.Warn(
					"nodestatus has no API server to register this node with, but this process has one: give both the same --kubeconfig",
					telemetry.KeySource,
					Name,
				)
			}
			synced = true
			found()
		default:
			cfg.Health.Set(part, "waiting for nodestatus to register this Node with the API server: check its health")
		}
	}
	// It ends with its context, which is no failure.
	_ = stream.Follow(waiting, stream.FollowConfig[*nodev1.Node]{
		Source: cfg.Nodes, Handle: handle, Clock: cfg.Clock, Logger: cfg.Logger, Name: stream.NameNode,
	})
	if !synced {
		return false
	}
	cfg.Health.Set(part, "")
	return true
}
