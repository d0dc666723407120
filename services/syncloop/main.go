// Command syncloop runs pods: it takes what is wanted from configmux and what is observed from pleg, makes the container
// runtime match, and says how each pod is, as quartet.engine.v1 and as the kubelet's read-only HTTP API. It is the only
// process of a node that changes the runtime. It may be killed at any moment, and no pod stops for it.
package main

import (
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
)

func main() {
	service.Main(nodeconfig.SyncLoop, run)
}
