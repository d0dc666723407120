package main

import (
	"context"
	"path/filepath"

	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
)

// newProbes makes what runs the probes of containers, with the results that the process before this one kept.
func newProbes(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry, runtime *cri.Client, events *podevents.Recorder, counts *probecalls.Metrics) (*prober.Manager, error) {
	book, err := prober.OpenBook(filepath.Join(cfg.StateDir, "probes"), tel.Logger)
	if err != nil {
		return nil, err
	}
	calls := probecalls.New(probecalls.Config{
		Runtime: func() (internalapi.RuntimeService, error) { return runtime.Runtime(atOnce(ctx)) },
		Clock:   clock.RealClock{}, Events: events, Metrics: counts,
	})
	return prober.New(prober.Config{
		Probe: calls.Probe, Forget: calls.Forget, Book: book, Clock: clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger,
	}), nil
}
