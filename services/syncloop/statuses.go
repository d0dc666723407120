package main

import (
	"context"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/apistatus"
	enginemetrics "github.com/quartet-node/quartet/services/syncloop/internal/metrics"
	"github.com/quartet-node/quartet/services/syncloop/internal/podstore"
)

// statuses has the API server know how the node's pods are. It has a client of its own, with the limits that the configuration gives
// each: the tokens, config maps and secrets that pods wait for do not hold up what is said of those that run.
type statuses struct {
	client  *apiclient.Client
	manager *apistatus.Manager
}

// statusesOf is nil for a node that is standalone.
func statusesOf(e *engine, tel *telemetry.Telemetry) (*statuses, error) {
	if e.cfg.Kubeconfig == "" {
		return nil, nil
	}
	client, err := apiclient.New(apiclient.ConfigOf(nodeconfig.SyncLoop, e.cfg))
	if err != nil {
		return nil, err
	}
	manager := apistatus.New(apistatus.Config{
		API: apistatus.FromAPIServer(client.Core), Clock: clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger, Metrics: e.counts,
	})
	enginemetrics.CollectStatuses(e.metrics.Registry, manager.Unsent)
	return &statuses{client: client, manager: manager}, nil
}

// store is whom the store reports to.
func (s *statuses) store() podstore.API {
	if s == nil {
		return nil
	}
	return s.manager
}

// run sends until ctx ends.
func (s *statuses) run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	defer s.client.Close()
	return ended(ctx, s.manager.Run(ctx))
}
