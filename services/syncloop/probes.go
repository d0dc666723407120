package syncloop

import (
	"context"
	"path/filepath"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
)

// newProbes returns the prober, with the results that an earlier process saved.
func newProbes(
	ctx context.Context, h *host, events *podevents.Recorder, parts *components.Group,
) *prober.Manager {
	book := prober.OpenBook(filepath.Join(h.cfg.StateDir, "probes"), h.logger)
	calls := probecalls.New(probecalls.Config{
		Runtime: h.runtimeNow(ctx), Clock: clock.RealClock{}, Events: events, Metrics: probecalls.NewMetrics(h.probeRegistry),
	})
	manager := prober.New(prober.Config{
		Probe: calls.Probe, Forget: calls.Forget, Book: book, Clock: clock.RealClock{}, Tracer: h.tracer, Logger: h.logger,
	})
	parts.Run("probes", manager.Run)
	return manager
}
