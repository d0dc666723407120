package main

import (
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// together has the metrics of the four processes, which a kubelet has in one. Those of the others are asked for on the sockets where they
// serve them unless --metrics-listen of them says otherwise.
func together(h *host) metrics.Together {
	others := map[string]string{}
	for _, service := range nodeconfig.Services() {
		if service != nodeconfig.SyncLoop {
			others[string(service)] = nodeconfig.MetricsAddress(h.cfg.Peers.Of(service))
		}
	}
	return metrics.Together{Own: h.registry, Others: others, Logger: h.logger}
}
