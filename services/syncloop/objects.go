package main

import (
	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/objects"
	"github.com/quartet-node/quartet/services/syncloop/internal/peers"
	"github.com/quartet-node/quartet/services/syncloop/internal/worker"
)

// objectsOf has the config maps and secrets of e's pods from configmux. A pod of which one changes has its volumes brought up to date
// and is looked at, for it may wait for just that.
func objectsOf(e *engine, tel *telemetry.Telemetry, to connections) *objects.Configmux {
	return objects.NewConfigmux(objects.ConfigmuxConfig{
		Stream: peers.Objects(configv1.NewConfigServiceClient(to.configmux)), Logger: tel.Logger,
		Metrics: stream.NewFollowedMetrics(e.metrics.Registry, stream.NameObjects),
		Changed: func(uid types.UID) {
			e.volumes.Refresh(uid)
			e.pool.Poke(uid, worker.Cause{Kind: worker.CauseConfig})
		},
	})
}
