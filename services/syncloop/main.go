// Package syncloop runs pods. It receives the desired pods from configmux and the observed ones from pleg, makes the
// container runtime match, and reports the status of each pod by quartet.engine.v1 and by the kubelet's HTTP API. It is
// the only process of a node that changes the runtime. It may be killed at any time; that stops no pod.
package syncloop

import (
	"context"
	"os"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// Main is the main function of the process. It ends it.
func Main() {
	service.Main(nodeconfig.SyncLoop, runOrFollow)
}

// runOrFollow runs the pods of a node, or with --shadow follows the syncloop that does.
func runOrFollow(ctx context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) error {
	if cfg.Shadow.On {
		return runShadow(ctx, cfg, tel.Logger, os.Stdout)
	}
	return run(ctx, cfg, tel)
}
