package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csidrivers"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/inventory"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/plugins"
)

const (
	// pluginSocketsDir and pluginsDir are the kubelet's folders below the root directory: of the sockets on which plugins
	// are registered, and of the plugins' own files.
	pluginSocketsDir, pluginsDir = "plugins_registry", "plugins"
	// pluginsMode is the kubelet's mode of these folders.
	pluginsMode = 0o750
)

// newPlugins adds the plugin manager, and returns the CSI drivers that it registers and the inventory that nodestatus
// follows.
func newPlugins(
	h *host, link *cluster.Link, parts *components.Group,
) (*csidrivers.Drivers, *inventory.Inventory, error) {
	if err := os.MkdirAll(filepath.Join(h.cfg.RootDir, pluginsDir), pluginsMode); err != nil {
		return nil, nil, fmt.Errorf("make the folder of plugins: %w", err)
	}
	published := inventory.New(stream.NewServedMetrics(h.registry, stream.NameStorage))
	drivers := csidrivers.New(csidrivers.Config{
		Object: link.Claims.Driver, Changed: published.Changed, Clock: clock.RealClock{}, Logger: h.logger,
	})
	parts.OnClose("connections to CSI drivers", func() error {
		drivers.Close()
		return nil
	})
	manager := plugins.New(plugins.Config{
		Dir: filepath.Join(h.cfg.RootDir, pluginSocketsDir), Clock: clock.RealClock{}, Logger: h.logger,
		Handlers: map[string]plugins.Handler{registrationv1.CSIPlugin: drivers},
		Metrics:  plugins.NewMetrics(h.registry),
	})
	parts.Run("plugins", manager.Run)
	parts.Run("CSI drivers", drivers.Run)
	parts.Run("storage inventory", func(ctx context.Context) error {
		return published.Run(ctx, inventory.Storage{Drivers: drivers.Nodes, InUse: inventory.NoVolumes{}})
	})
	return drivers, published, nil
}
