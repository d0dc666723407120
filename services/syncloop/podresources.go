package main

import (
	"context"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/podresources"
)

// tellPodResources serves the pod-resources API until ctx ends. Pods do not need it: a node that cannot serve it runs them all the same.
func (e *engine) tellPodResources(ctx context.Context) error {
	path := podresources.Socket(e.cfg.RootDir)
	err := podresources.Serve(ctx, podresources.Config{
		Path: path, Pods: e.store.Active, Metrics: podresources.NewMetrics(e.metrics.Registry), Logger: e.logger, Clock: clock.RealClock{},
	})
	if err != nil {
		e.logger.Warn("the pod-resources API is not served; once that is put right, restart syncloop", telemetry.KeyFile, path, telemetry.KeyError, err)
	}
	return nil
}
