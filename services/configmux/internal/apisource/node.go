package apisource

import (
	"context"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
)

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
