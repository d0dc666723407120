// Command nodestatus keeps the Node: what this machine has, and whether it can run pods. It reads the machine and asks
// pleg and syncloop for their health, and serves what comes out as quartet.node.v1. It needs no root and no access to
// the container runtime.
package main

import (
	"context"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/telemetry"
)

func main() {
	service.Main(nodeconfig.NodeStatus, func(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) error {
		return run(ctx, cfg, tel.Logger, tel.Tracer)
	})
}
