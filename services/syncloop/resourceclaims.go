package syncloop

import (
	"context"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/dynamicresources"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocator"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/deviceplugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/resourceclaims"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/plugins"
)

// newResourceClaims adds the resource claims of the node's pods, with those of an earlier process. It returns nil for a
// node without an API server, which has no claims. podChanged is called when the health of a pod's device has changed,
// and when the driver that the pod waits for is there.
func newResourceClaims(
	h *host, askNode func(context.Context) (*v1.Node, error), podChanged func(types.UID), parts *components.Group,
) (*resourceclaims.Manager, error) {
	metrics := resourceclaims.NewMetrics(h.registry)
	if h.cfg.Kubeconfig == "" {
		metrics.Expose(func() map[string]int { return map[string]int{claimbook.AnyDriver: 0} })
		return nil, nil //nolint:nilnil // without an API server there are no claims
	}
	api, err := newAPIClient(h, parts)
	if err != nil {
		return nil, err
	}
	client, err := api.Group(resourceapi.SchemeGroupVersion, dynamicresources.AddTypes)
	if err != nil {
		return nil, err
	}
	claims, err := resourceclaims.New(resourceclaims.Config{
		Root: h.cfg.RootDir,
		API:  dynamicresources.APIServer{Client: client, NodeName: h.cfg.NodeName, Node: askNode},
		Boot: h.boot, BootFile: filepath.Join(h.cfg.StateDir, "resourceslices.boot"), PodChanged: podChanged,
		Health: nodeconfig.ReportsDeviceHealth(&h.cfg.Kubelet), Messages: nodeconfig.ReportsHealthMessages(&h.cfg.Kubelet),
		Clock: clock.RealClock{}, Metrics: metrics, Logger: h.logger,
	})
	if err != nil {
		return nil, err
	}
	parts.Run("resource claims", claims.Run)
	return claims, nil
}

// draDrivers registers the DRA drivers that the plugin manager finds.
type draDrivers struct{ claims *resourceclaims.Manager }

// Validate implements plugins.Handler.
func (d draDrivers) Validate(_ context.Context, p plugins.Plugin) error {
	return d.claims.Validate(p.Name, p.Endpoint, p.Versions)
}

// Register implements plugins.Handler.
func (d draDrivers) Register(_ context.Context, p plugins.Plugin) error {
	return d.claims.Register(p.Name, p.Endpoint, p.Versions)
}

// Deregister implements plugins.Handler.
func (d draDrivers) Deregister(ctx context.Context, p plugins.Plugin) {
	d.claims.Deregister(ctx, p.Name, p.Endpoint)
}

// podDevices have what pods have for themselves: the devices and CPUs of the allocator, and resource claims.
type podDevices struct {
	*allocator.Allocator

	plugins *deviceplugins.Manager
	// claims is nil on a node without an API server.
	claims *resourceclaims.Manager
}

// newPodDevices adds what pods have for themselves. Changed is called when the amounts of devices have changed, and
// podChanged for a pod one of whose devices has changed.
func newPodDevices(
	h *host, askNode func(context.Context) (*v1.Node, error), changed func(), podChanged func(types.UID),
	parts *components.Group,
) (devices podDevices, err error) {
	machine, err := newMachineCPUs(h)
	if err != nil {
		return podDevices{}, err
	}
	if devices.plugins, err = newDevices(h, machine, changed, podChanged, parts); err != nil {
		return podDevices{}, err
	}
	if devices.Allocator, err = newAllocator(h, machine, devices.plugins); err != nil {
		return podDevices{}, err
	}
	devices.claims, err = newResourceClaims(h, askNode, podChanged, parts)
	return devices, err
}

// Recover implements loop.Devices: it tells each kind what is in the runtime.
func (d podDevices) Recover(observed []*lifecyclev1.PodStatus, goesOn func(types.UID) bool) {
	d.Allocator.Recover(observed, goesOn)
	if d.claims != nil {
		d.claims.Recover(observed)
	}
}

// claimsOf returns the function that returns the resource claims of a container.
func claimsOf(claims *resourceclaims.Manager) func(*v1.Pod, *v1.Container) []claimbook.Claim {
	if claims == nil {
		return func(*v1.Pod, *v1.Container) []claimbook.Claim { return nil }
	}
	return claims.Claims
}
