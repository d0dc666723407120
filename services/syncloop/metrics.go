package syncloop

import (
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/peertls"
)

// nodeMetrics gathers the metrics of all four processes, because a kubelet has them in one. It reads those of the
// others from their default sockets; a process with another --metrics-listen is missing. One on another machine is not
// of this node, such as the configmux of a site.
func nodeMetrics(h *host) metrics.NodeGatherer {
	others := map[string]string{}
	for _, service := range nodeconfig.Services() {
		if address := h.cfg.Peers.Of(service); service != nodeconfig.SyncLoop && !peertls.OnNetwork(address) {
			others[string(service)] = nodeconfig.MetricsAddress(address)
		}
	}
	return metrics.NodeGatherer{Own: h.registry, Others: others, Logger: h.logger}
}
