package syncloop

import (
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apievents"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
)

// newEvents returns the recorder of events. In a cluster it also sends them to the API server.
func newEvents(h *host, parts *components.Group) (*podevents.Recorder, error) {
	target, err := apievents.Connect(nodeconfig.SyncLoop, h.cfg, h.logger, h.registry)
	if err != nil {
		return nil, err
	}
	parts.Run("events to the API server", target.Run)
	return podevents.New(podevents.Config{
		NodeName: h.cfg.NodeName, Publish: target.Send, Clock: clock.RealClock{}, Logger: h.logger,
		StreamMetrics: stream.NewServedMetrics(h.registry, stream.NamePodEvents),
	}), nil
}
