package syncloop

import (
	"context"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/deviceplugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/resourceclaims"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/plugins"
)

// newDevices adds the devices of the node, with the allocations of an earlier process. Changed is called when the
// amounts have changed, and podChanged when the health of a pod's device has, or when the device is back.
func newDevices(h *host, m *machineCPUs, changed func(), podChanged func(types.UID), parts *components.Group) (
	*deviceplugins.Manager, error) {
	devices, err := deviceplugins.New(deviceplugins.Config{
		Root: h.cfg.RootDir, Nodes: m.nodes(), Changed: changed, PodChanged: podChanged, Clock: clock.RealClock{},
		Metrics: deviceplugins.NewMetrics(h.registry), Logger: h.logger,
	})
	if err != nil {
		return nil, err
	}
	parts.Run("device plugins", devices.Run)
	return devices, nil
}

// devicePlugins registers the device plugins that the plugin manager finds.
type devicePlugins struct{ devices *deviceplugins.Manager }

// Validate implements plugins.Handler.
func (d devicePlugins) Validate(_ context.Context, p plugins.Plugin) error {
	return d.devices.Validate(p.Name, p.Versions)
}

// Register implements plugins.Handler.
func (d devicePlugins) Register(ctx context.Context, p plugins.Plugin) error {
	return d.devices.Connect(ctx, p.Name, p.Endpoint)
}

// Deregister implements plugins.Handler.
func (d devicePlugins) Deregister(ctx context.Context, p plugins.Plugin) {
	d.devices.Disconnect(ctx, p.Name, p.Endpoint)
}

// deviceResources returns the amounts of the resources for nodestatus.
func deviceResources(devices *deviceplugins.Manager) []*enginev1.DeviceResource {
	amounts := devices.Amounts()
	all := make([]*enginev1.DeviceResource, 0, len(amounts))
	for name, a := range amounts {
		all = append(all, &enginev1.DeviceResource{Name: name, Capacity: a.Capacity, Allocatable: a.Allocatable})
	}
	return all
}

// allocatedResources returns a function that returns the devices of a container with their health, for its status:
// those of device plugins and those of its resource claims. It returns nil if the configuration turns that off.
func allocatedResources(
	h *host, devices *deviceplugins.Manager, claims *resourceclaims.Manager,
) func(pod *v1.Pod, container string) []v1.ResourceStatus {
	if !nodeconfig.ReportsDeviceHealth(&h.cfg.Kubelet) {
		return nil
	}
	return func(pod *v1.Pod, container string) []v1.ResourceStatus {
		held := devices.Held(pod.UID, container)
		var all []v1.ResourceStatus
		for _, name := range slices.Sorted(maps.Keys(held)) {
			status := v1.ResourceStatus{Name: v1.ResourceName(name)}
			for _, d := range held[name] {
				health := v1.ResourceHealthStatusUnhealthy
				if d.Healthy {
					health = v1.ResourceHealthStatusHealthy
				}
				status.Resources = append(status.Resources, v1.ResourceHealth{ResourceID: v1.ResourceID(d.ID), Health: health})
			}
			all = append(all, status)
		}
		if claims != nil {
			all = append(all, claims.Status(pod, container)...)
		}
		return all
	}
}
