// Package inventory follows syncloop's stream of the storage and devices of this node: the registered CSI drivers, the
// volumes in use, and the resources of device plugins. While syncloop is away, the last state stays. Package csinode
// publishes the drivers, package report the volumes, and package nodeobject the devices.
package inventory

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// Source returns the stream. Subscribing waits for a syncloop that is unreachable.
func Source(conn grpc.ClientConnInterface) stream.Source[*enginev1.StorageItem] {
	client := enginev1.NewEngineServiceClient(conn)
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*enginev1.StorageItem], error) {
		watch, err := client.WatchStorage(ctx, &enginev1.WatchStorageRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			return nil, fmt.Errorf("watch syncloop's storage: %w", err)
		}
		return func() (*streamv1.Frame, *enginev1.StorageItem, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetItem(), err
		}, nil
	})
}

// Drivers is the state of the CSI drivers of this node.
type Drivers struct {
	// Known are the registered drivers by name.
	Known map[string]*enginev1.CSIDriver
	// Gone are the drivers that were deregistered and are not registered again.
	Gone map[string]bool
	// Since is the time of the last snapshot or resumption; zero before the first. A driver that is neither known nor gone
	// may not be registered again yet after a restart of syncloop.
	Since time.Time
}

// Config holds the parameters of an Inventory.
type Config struct {
	// Source is the stream, see Source. Required.
	Source stream.Source[*enginev1.StorageItem]
	// DriversChanged, VolumesChanged and DevicesChanged are called after a change. They must not block. Required.
	DriversChanged, VolumesChanged, DevicesChanged func()
	Clock                                          clock.Clock
	Logger                                         *slog.Logger
	Metrics                                        *stream.FollowedMetrics
}

// Inventory follows the stream. Create it with New. Its methods are safe for concurrent use.
type Inventory struct {
	mu      sync.Mutex
	drivers Drivers
	volumes map[string]bool
	devices map[string]*enginev1.DeviceResource
}

// New returns an Inventory that knows nothing.
func New() *Inventory {
	return &Inventory{
		drivers: Drivers{Known: map[string]*enginev1.CSIDriver{}, Gone: map[string]bool{}}, volumes: map[string]bool{},
		devices: map[string]*enginev1.DeviceResource{},
	}
}

// Drivers returns the drivers.
func (i *Inventory) Drivers() Drivers {
	i.mu.Lock()
	defer i.mu.Unlock()
	return Drivers{Known: maps.Clone(i.drivers.Known), Gone: maps.Clone(i.drivers.Gone), Since: i.drivers.Since}
}

// VolumesInUse returns the sorted names of the volumes in use. Known is false before the first snapshot.
func (i *Inventory) VolumesInUse() (names []v1.UniqueVolumeName, known bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(i.volumes)) {
		names = append(names, v1.UniqueVolumeName(name))
	}
	return names, !i.drivers.Since.IsZero()
}

// Devices returns the amounts of the resources of device plugins by name; nil before the first snapshot. A resource
// that is no longer in the stream stays with the amounts 0, as in the kubelet: that tells it from a resource of the
// cluster.
func (i *Inventory) Devices() map[string]nodeobject.Amounts {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.drivers.Since.IsZero() {
		return nil
	}
	all := make(map[string]nodeobject.Amounts, len(i.devices))
	for name, d := range i.devices {
		all[name] = nodeobject.Amounts{Capacity: d.GetCapacity(), Allocatable: d.GetAllocatable()}
	}
	return all
}

// Run follows the stream until ctx ends, whose error it returns.
func (i *Inventory) Run(ctx context.Context, cfg Config) error {
	return stream.Follow(ctx, stream.FollowConfig[*enginev1.StorageItem]{
		Source: cfg.Source, Name: stream.NameStorage, Clock: cfg.Clock, Logger: cfg.Logger, Metrics: cfg.Metrics,
		Equal:  func(held, fresh *enginev1.StorageItem) bool { return proto.Equal(held, fresh) },
		Handle: func(change stream.Change[*enginev1.StorageItem]) { i.handle(change, cfg) },
		Synced: func() {
			i.mu.Lock()
			i.drivers.Since = cfg.Clock.Now()
			i.mu.Unlock()
			cfg.DriversChanged()
			cfg.VolumesChanged()
			cfg.DevicesChanged()
		},
	})
}

// handle records a change. Changes of a snapshot are notified when it is complete.
func (i *Inventory) handle(change stream.Change[*enginev1.StorageItem], cfg Config) {
	item, removed := change.New, change.Op == stream.OpRemove
	if removed {
		item = change.Old
	}
	i.mu.Lock()
	driver, volume, device := item.GetDriver(), item.GetVolumeInUse(), item.GetDeviceResource()
	switch {
	case driver != nil && removed:
		delete(i.drivers.Known, driver.GetName())
		if !change.FromSnapshot {
			i.drivers.Gone[driver.GetName()] = true
		}
	case driver != nil:
		delete(i.drivers.Gone, driver.GetName())
		i.drivers.Known[driver.GetName()] = driver
	case volume != "" && removed:
		delete(i.volumes, volume)
	case volume != "":
		i.volumes[volume] = true
	case device != nil && removed:
		i.devices[device.GetName()] = nil
	case device != nil:
		i.devices[device.GetName()] = device
	}
	i.mu.Unlock()
	if change.FromSnapshot {
		return
	}
	if driver != nil {
		cfg.DriversChanged()
	}
	if volume != "" {
		cfg.VolumesChanged()
	}
	if device != nil {
		cfg.DevicesChanged()
	}
}
