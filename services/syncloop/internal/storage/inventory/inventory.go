// Package inventory publishes what plugins and volumes add to the Node: the registered CSI drivers with their
// descriptions of the node, the volumes in use, and the resources of device plugins. nodestatus follows it to tell the
// cluster.
package inventory

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csidrivers"
)

// The prefixes of keys.
const driverPrefix, volumePrefix, devicePrefix = "driver/", "volume/", "device/"

// ErrUnknown is returned until the volumes in use are known.
var ErrUnknown = errors.New("the volumes in use are not known yet: ask again in a moment")

// InUse has the volumes in use.
type InUse interface {
	// VolumesInUse returns the unique names of the volumes that must not be detached from this node, because they are
	// mounted or being mounted. Known is false while volumes of an earlier process may be missing.
	VolumesInUse() (names []v1.UniqueVolumeName, known bool)
}

// Storage is what an Inventory publishes. All fields are required.
type Storage struct {
	// Drivers returns the descriptions of the node by its drivers: (*csidrivers.Drivers).Nodes.
	Drivers func() []csidrivers.Node
	// Health returns what drivers report to be wrong with their storage, by their names: (*volumehealth.Monitor).Storage.
	Health func() map[string][]storagev1.StorageHealthCondition
	// InUse has the volumes in use.
	InUse InUse
	// Devices returns the resources of device plugins.
	Devices func() []*enginev1.DeviceResource
}

// Inventory publishes the storage. Create it with New.
type Inventory struct {
	level *stream.Level[*enginev1.StorageItem]
	// changed has capacity one, because one look covers every change.
	changed chan struct{}

	mu sync.Mutex
	// known is true once the volumes in use are published.
	known bool

	// Only Run uses it: the published items by key.
	published map[string]*enginev1.StorageItem
}

// New returns an Inventory that has published nothing. Metrics counts the operations of the stream.
func New(metrics *stream.ServedMetrics) *Inventory {
	i := &Inventory{
		level:   stream.NewLevel[*enginev1.StorageItem](stream.Config{Metrics: metrics}),
		changed: make(chan struct{}, 1), published: map[string]*enginev1.StorageItem{},
	}
	i.Changed()
	return i
}

// Changed requests a look at the drivers and the volumes in use. It does not block.
func (i *Inventory) Changed() {
	select {
	case i.changed <- struct{}{}:
	default:
	}
}

// Run publishes the storage and its changes until ctx ends, whose error it returns. It then ends all subscriptions.
func (i *Inventory) Run(ctx context.Context, storage Storage) error {
	defer i.level.Close()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-i.changed:
			i.look(storage)
		}
	}
}

// Source returns the stream of items. It fails with ErrUnknown until the volumes in use are known.
func (i *Inventory) Source() (stream.Source[*enginev1.StorageItem], error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.known {
		return nil, ErrUnknown
	}
	return i.level, nil
}

// look publishes what has changed.
func (i *Inventory) look(storage Storage) {
	volumes, known := storage.InUse.VolumesInUse()
	if !known {
		return // the source of the volumes calls Changed when it knows them
	}
	now := itemsOf(driversOf(storage), volumes, storage.Devices())
	for key := range i.published {
		if now[key] == nil {
			i.level.Delete(key)
		}
	}
	for key, item := range now {
		if !proto.Equal(i.published[key], item) {
			i.level.Put(key, item)
		}
	}
	i.published = now
	i.mu.Lock()
	defer i.mu.Unlock()
	i.known = true
}

// driversOf returns the drivers with what they report of the node and of their storage.
func driversOf(storage Storage) []*enginev1.CSIDriver {
	health := storage.Health()
	nodes := storage.Drivers()
	all := make([]*enginev1.CSIDriver, 0, len(nodes))
	for _, node := range nodes {
		driver := &enginev1.CSIDriver{Name: node.Driver, NodeId: node.ID, Topology: node.Topology}
		if node.Volumes > 0 {
			driver.AllocatableVolumes = proto.Int64(node.Volumes)
		}
		if conditions, known := health[node.Driver]; known {
			of := &storagev1.StorageHealth{Name: node.Driver, HealthConditions: conditions}
			if data, err := of.Marshal(); err == nil { // it never fails
				driver.StorageHealth = data
			}
		}
		all = append(all, driver)
	}
	return all
}

// itemsOf returns the items by key.
func itemsOf(
	drivers []*enginev1.CSIDriver, volumes []v1.UniqueVolumeName, devices []*enginev1.DeviceResource,
) map[string]*enginev1.StorageItem {
	items := make(map[string]*enginev1.StorageItem, len(drivers)+len(volumes)+len(devices))
	for _, driver := range drivers {
		items[driverPrefix+driver.GetName()] = &enginev1.StorageItem{Driver: driver}
	}
	for _, name := range volumes {
		items[volumePrefix+string(name)] = &enginev1.StorageItem{VolumeInUse: string(name)}
	}
	for _, device := range devices {
		items[devicePrefix+device.GetName()] = &enginev1.StorageItem{DeviceResource: device}
	}
	return items
}
