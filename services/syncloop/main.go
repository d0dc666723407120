// Package syncloop runs pods. It receives the desired pods from configmux and the observed ones from pleg, makes the
// container runtime match, and reports the status of each pod by quartet.engine.v1 and by the kubelet's HTTP API. It is
// the only process of a node that changes the runtime. It may be killed at any time; that stops no pod.
package syncloop

import (
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
)

// Main is the main function of the process. It ends it.
func Main() {
	service.Main(nodeconfig.SyncLoop, run)
}
