package main

import (
	"context"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/servicelinks"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// servicesOf gives containers the variables of the API server's services; on a node that is standalone there are none, and run has
// nothing to do. A pod that waits for the services is looked at when they are known.
func servicesOf(e *engine, to connections) (known executor.Services, run func(context.Context) error) {
	if to.cluster == nil {
		return servicelinks.None{}, func(context.Context) error { return nil }
	}
	links := servicelinks.New(servicelinks.Config{
		Client: to.cluster.Core, Changed: e.changes.Note(podchanges.Sync), Clock: clock.RealClock{},
	})
	return links, links.Run
}
