package main

import (
	"context"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/runtimeclasses"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// runtimeClassesOf has the runtime classes that pods name from the API server; on a node that is standalone their names are those of
// handlers, and run has nothing to do. A pod that waits for its class is looked at when that comes.
func runtimeClassesOf(e *engine, to connections) (classes executor.RuntimeClasses, run func(context.Context) error) {
	if to.cluster == nil {
		return runtimeclasses.ByName{}, func(context.Context) error { return nil }
	}
	known := runtimeclasses.New(runtimeclasses.Config{
		Client: to.cluster.Node, Changed: e.changes.Note(podchanges.Sync), Clock: clock.RealClock{},
	})
	return known, known.Run
}
