package main

import (
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apievents"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
)

// tellEvents makes what keeps the events, and in a cluster sends them to the API server too.
func (e *engine) tellEvents(tel *telemetry.Telemetry) (err error) {
	if e.eventsWay, err = apievents.WayOf(nodeconfig.SyncLoop, e.cfg, tel.Logger, e.metrics.Registry); err != nil {
		return err
	}
	e.events = podevents.New(podevents.Config{
		NodeName: e.cfg.NodeName, Told: e.eventsWay.Told(), Clock: clock.RealClock{}, Logger: tel.Logger,
		StreamMetrics: stream.NewServedMetrics(e.metrics.Registry, stream.NamePodEvents),
	})
	return nil
}

// serving says that this process serves: in its log, and to the systemd that has started it.
func (e *engine) serving() {
	e.logger.Info("serving", "address", e.cfg.Listen)
	e.cfg.Systemd.Ready(e.logger)
}
