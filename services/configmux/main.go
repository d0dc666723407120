// Command configmux decides what this node is to run: it merges the pods of all sources and serves the outcome as
// quartet.config.v1. It needs to read the manifests, and neither root nor the container runtime.
package main

import (
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
)

func main() {
	service.Main(nodeconfig.ConfigMux, run)
}
