package main

import (
	"context"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/mirrorpods"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// statuses has the API server know how the node's pods are, those of other sources by mirror pods. It has a client of its own, with the limits that the configuration gives
// each: the tokens, config maps and secrets that pods wait for do not hold up what is said of those that run.
type statuses struct {
	client  *apiclient.Client
	manager *statusmanager.Manager
	mirrors *mirrorpods.Manager
}

// statusesOf is nil for a node that is standalone.
func statusesOf(e *engine, tel *telemetry.Telemetry) (*statuses, error) {
	// A standalone node has them too, as zeros.
	counts := statusmanager.NewMetrics(e.metrics.Registry)
	if e.cfg.Kubeconfig == "" {
		return nil, nil
	}
	client, err := apiclient.New(apiclient.ConfigOf(nodeconfig.SyncLoop, e.cfg))
	if err != nil {
		return nil, err
	}
	client.CountIn(e.requests)
	manager := statusmanager.New(statusmanager.Config{
		API: statusmanager.FromAPIServer(client.Core), Clock: clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger, Metrics: counts,
	})
	return &statuses{client: client, manager: manager}, nil
}

// mirror has static pods shown by mirror pods: of those that pool and store have.
func (s *statuses) mirror(e *engine, tel *telemetry.Telemetry, pool *podworkers.Pool, store *podstore.Store) {
	counts := mirrorpods.NewMetrics(e.metrics.Registry)
	if s == nil {
		return
	}
	s.mirrors = mirrorpods.New(mirrorpods.Config{
		NodeName: e.cfg.NodeName, API: mirrorpods.FromAPIServer(s.client.Core), Statuses: s.manager, Events: e.events,
		Ending: func(name types.NamespacedName, but types.UID) bool {
			return pool.OtherHas(name, but) || store.OtherRuns(name, but)
		},
		Clock: clock.RealClock{}, Logger: tel.Logger, Metrics: counts,
	})
}

// store is whom the store reports to.
func (s *statuses) store() podstore.API {
	if s == nil {
		return nil
	}
	return s.manager
}

// loop is whom the loop tells of static pods.
func (s *statuses) loop() loop.Mirrors {
	if s == nil {
		return nil
	}
	return s.mirrors
}

// run sends until ctx ends.
func (s *statuses) run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	defer s.client.Close()
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error { return s.manager.Run(within) })
	group.Go(func() error { return s.mirrors.Run(within) })
	return ended(ctx, group.Wait())
}
