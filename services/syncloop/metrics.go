package syncloop

import (
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// nodeMetrics gathers the metrics of all four processes, because a kubelet has them in one. It reads those of the
// others from their default sockets; a process with another --metrics-listen is missing.
func nodeMetrics(h *host) metrics.NodeGatherer {
	others := map[string]string{}
	for _, service := range nodeconfig.Services() {
		if service != nodeconfig.SyncLoop {
			others[string(service)] = nodeconfig.MetricsAddress(h.cfg.Peers.Of(service))
		}
	}
	return metrics.NodeGatherer{Own: h.registry, Others: others, Logger: h.logger}
}
