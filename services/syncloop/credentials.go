package syncloop

import (
	"context"
	"os"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
)

// newCredentialProviders returns the configured credential provider plugins. They are called under ctx. It returns an
// error with all problems if the configuration is invalid or a plugin is missing. enterRoot must have been called,
// because the paths are the machine's.
func newCredentialProviders(
	ctx context.Context, h *host, link *cluster.Link, parts *components.Group,
) (*imagecredentials.Providers, error) {
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

// homeDir returns the home directory of this process's user. It is root's if none is set, as in a systemd unit.
func homeDir() string {
	if home, err := os.UserHomeDir(); err == nil {
		return home
	}
	return "/root"
}
