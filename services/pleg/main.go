// Package pleg observes the pods of this node. It lists and inspects the pods of the container runtime, uses the
// runtime's events as hints of what to inspect, and serves its observations and events as quartet.lifecycle.v1. It only
// reads: syncloop changes the runtime.
package pleg

import (
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
)

// Main is the main function of the process. It ends it.
func Main() {
	service.Main(nodeconfig.PLEG, run)
}
