// Package nodestatus maintains the Node: the properties of this machine, and whether it can run pods. It reads the
// machine, polls the health of pleg and syncloop, and serves the result as quartet.node.v1. It needs neither root nor
// access to the container runtime.
package nodestatus

import (
	"context"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// Main is the main function of the process. It ends it.
func Main() {
	service.Main(nodeconfig.NodeStatus, func(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) error {
		return run(ctx, cfg, tel.Logger, tel.Tracer)
	})
}
