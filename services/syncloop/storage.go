package syncloop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/deviceplugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csi"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csidrivers"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/inventory"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/plugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumehealth"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

const (
	// pluginSocketsDir and pluginsDir are the kubelet's folders below the root directory: of the sockets on which plugins
	// are registered, and of the plugins' own files.
	pluginSocketsDir, pluginsDir = "plugins_registry", "plugins"
	// pluginsMode is the kubelet's mode of these folders.
	pluginsMode = 0o750
)

// storage is what syncloop has of CSI drivers.
type storage struct {
	drivers *csidrivers.Drivers
	volumes *csi.Plugin
	// operations times operations on volumes.
	operations *volumes.Metrics
	// changed has a value after a driver was registered. Its capacity is one, because one look covers all drivers.
	changed chan struct{}
	// health has the health of volumes and of the drivers' storage.
	health *volumehealth.Monitor
}

// newStorage adds the plugin manager, and the volumes of the CSI drivers that it registers.
func newStorage(
	h *host, askNode func(context.Context) (*v1.Node, error), link *cluster.Link, changes *podchanges.Changes,
	events *podevents.Recorder, devices podDevices, published *inventory.Inventory,
	parts *components.Group,
) (*storage, error) {
	if err := makePluginDirs(h); err != nil {
		return nil, err
	}
	changed := make(chan struct{}, 1)
	driversChanged, inUseChanged := published.Changed, published.Changed
	local := volumesOf(link)
	if local != nil {
		driversChanged = func() {
			published.Changed()
			local.Tell()
		}
		inUseChanged = func() {
			published.Changed()
			local.Check()
		}
	}
	drivers := csidrivers.New(csidrivers.Config{
		Object: link.Claims.Driver, Changed: func() {
			driversChanged()
			select {
			case changed <- struct{}{}:
			default:
			}
		},
		Intercept: csi.NewMetrics(h.registry).Intercept,
		Clock:     clock.RealClock{}, Logger: h.logger,
	})
	parts.OnClose("connections to CSI drivers", func() error {
		drivers.Close()
		return nil
	})
	handlers := map[string]plugins.Handler{
		registrationv1.CSIPlugin: drivers, registrationv1.DevicePlugin: devicePlugins{devices: devices.plugins},
	}
	if devices.claims != nil {
		handlers[registrationv1.DRAPlugin] = draDrivers{claims: devices.claims}
	}
	manager := plugins.New(plugins.Config{
		Dir: filepath.Join(h.cfg.RootDir, pluginSocketsDir), Clock: clock.RealClock{}, Logger: h.logger,
		Handlers: handlers, Metrics: plugins.NewMetrics(h.registry),
	})
	config := csi.Config{
		Root: h.cfg.RootDir, Boot: h.boot, NodeName: h.cfg.NodeName, Drivers: drivers, Cluster: link.Claims,
		Claims: link.Claims, Events: events,
		Tokens: link.Tokens, InUseChanged: inUseChanged, Mounts: volumes.Machine{}, Clock: clock.RealClock{},
		Tracer: h.tracer, Logger: h.logger, Freed: changes.Note(podchanges.Content), SELinux: selinux.Machine{},
	}
	if h.cfg.Kubeconfig != "" {
		controller := ptr.Deref(h.cfg.Kubelet.EnableControllerAttachDetach, true)
		attached := newAttachedVolumes(askNode, controller, clock.RealClock{})
		config.Attached = attached.Await
		parts.Run("attached volumes", attached.Run)
	}
	operations := volumes.NewMetrics(h.registry)
	config.Measured = operations.Done
	mounted, err := csi.New(config)
	if err != nil {
		return nil, err
	}
	if local != nil {
		local.Connect(drivers, mounted.Uses)
	}
	parts.Run("plugins", manager.Run)
	parts.Run("CSI drivers", drivers.Run)
	parts.Run("CSI volumes", mounted.Run)
	health := volumehealth.New()
	parts.Run("storage inventory", func(ctx context.Context) error {
		return published.Run(ctx, inventory.Storage{
			Drivers: drivers.Nodes, Health: health.Storage, InUse: mounted,
			Devices: func() []*enginev1.DeviceResource { return deviceResources(devices.plugins) },
		})
	})
	return &storage{drivers: drivers, volumes: mounted, operations: operations, changed: changed, health: health}, nil
}

// retry retries the volumes that wait for a driver when it is registered, until ctx ends, whose error it returns. It
// passes their pods to poke.
func (s *storage) retry(ctx context.Context, manager *volumes.Manager, poke func(types.UID)) error {
	isRegistered := func(waitsFor string) bool {
		name, ok := strings.CutPrefix(waitsFor, csidrivers.WaitsFor(""))
		if !ok {
			return false
		}
		_, err := s.drivers.Conn(name)
		return err == nil
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.changed:
		}
		s.volumes.Retry()
		for _, uid := range manager.Retry(isRegistered) {
			poke(uid)
		}
	}
}

// makePluginDirs makes the folders of plugins, which plugins in containers may use also on a machine with SELinux.
func makePluginDirs(h *host) error {
	for _, name := range []string{pluginsDir, pluginSocketsDir, deviceplugins.Folder} {
		dir := filepath.Join(h.cfg.RootDir, name)
		if err := os.MkdirAll(dir, pluginsMode); err != nil {
			return fmt.Errorf("make a folder of plugins: %w", err)
		}
		if err := selinux.Share(dir); err != nil {
			h.logger.Warn("a folder of plugins has no SELinux label for containers; unprivileged plugins may not work",
				telemetry.KeyFile, dir, telemetry.KeyError, err)
		}
	}
	return nil
}
