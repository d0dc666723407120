// Command pleg says what runs on this node. It lists and inspects the pods of the container runtime, listens to the
// runtime's events as hints of what to look at, and serves what it has observed, and what has happened, as
// quartet.lifecycle.v1. It only reads: syncloop is who changes the runtime.
package main

import (
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
)

func main() {
	service.Main(nodeconfig.PLEG, run)
}
