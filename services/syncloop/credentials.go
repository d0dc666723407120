package main

import (
	"context"
	"os"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
)

// newCredentialProviders returns the credential provider plugins of the configuration, which are called under ctx. It fails, with
// everything that is wrong, when the configuration cannot be used or a plugin is missing. The root of this process is the machine's
// already, as the paths are.
func newCredentialProviders(ctx context.Context, h *host, link *cluster.Link, parts *components.Group) (*imagecredentials.Providers, error) {
	configured, err := h.cfg.CredentialProviders.Read()
	if err != nil {
		return nil, err
	}
	providers := imagecredentials.New(ctx, imagecredentials.Config{
		Providers: configured, Run: imagecredentials.Exec, Accounts: link.Accounts, Clock: clock.RealClock{},
		Metrics: imagecredentials.NewMetrics(h.registry), Logger: h.logger,
	})
	parts.Run("credential providers", providers.Run)
	return providers, nil
}

// homeDir is the home of the user that this process runs as: that of root where nothing else is said, as for a unit of systemd.
func homeDir() string {
	if home, err := os.UserHomeDir(); err == nil {
		return home
	}
	return "/root"
}
