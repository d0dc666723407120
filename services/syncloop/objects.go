package main

import (
	"context"

	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
)

// podObjects are the config maps and secrets of pods, known while Run has not returned.
type podObjects interface {
	configobjects.Source
	Run(ctx context.Context) error
}

// objectsOf has the config maps and secrets of e's pods from the API server, or on a node without one from configmux. A pod of which
// one changes has its volumes brought up to date and is looked at, for it may wait for just that. Process is what watches live under.
func objectsOf(process context.Context, e *engine, tel *telemetry.Telemetry, to connections) podObjects {
	changed := e.changes.Note(podchanges.Content | podchanges.Sync)
	if to.cluster != nil {
		return configobjects.NewCluster(process, configobjects.ClusterConfig{
			Client: to.cluster.Core, Strategy: e.cfg.Kubelet.ConfigMapAndSecretChangeDetectionStrategy, Changed: changed, Clock: clock.RealClock{},
		})
	}
	return configobjects.NewConfigmux(configobjects.ConfigmuxConfig{
		Stream: clients.Objects(configv1.NewConfigServiceClient(to.configmux)), Logger: tel.Logger,
		Metrics: stream.NewFollowedMetrics(e.metrics.Registry, stream.NameObjects), Changed: changed,
	})
}
