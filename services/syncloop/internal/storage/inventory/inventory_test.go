package inventory_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csidrivers"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/inventory"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// storage is a node's storage that a test changes.
type storage struct {
	mu      sync.Mutex
	drivers []csidrivers.Node
	volumes []v1.UniqueVolumeName
	health  map[string][]storagev1.StorageHealthCondition
	gpus    int64
	known   bool
}

func (s *storage) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *storage) nodes() []csidrivers.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.drivers)
}

func (s *storage) healthOf() map[string][]storagev1.StorageHealthCondition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health
}

func (s *storage) VolumesInUse() ([]v1.UniqueVolumeName, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.volumes), s.known
}

func (s *storage) devices() []*enginev1.DeviceResource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gpus == 0 {
		return nil
	}
	return []*enginev1.DeviceResource{{Name: "example.com/gpu", Capacity: s.gpus, Allocatable: 1}}
}

func start(t *testing.T, s *storage) *inventory.Inventory {
	t.Helper()
	i := inventory.New(stream.NewServedMetrics(prometheus.NewRegistry(), stream.NameStorage))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	node := inventory.Storage{Drivers: s.nodes, Health: s.healthOf, InUse: s, Devices: s.devices}
	go func() { done <- i.Run(ctx, node) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return i
}

// next returns the next message.
func next(t *testing.T, sub stream.Subscription[*enginev1.StorageItem]) stream.Message[*enginev1.StorageItem] {
	t.Helper()
	m, err := sub.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestNothingIsServedBeforeTheVolumesAreKnown(t *testing.T) {
	s := &storage{drivers: []csidrivers.Node{{Driver: "d", ID: "n"}}, gpus: 2}
	i := start(t, s)
	i.Changed()
	if _, err := i.Source(); !errors.Is(err, inventory.ErrUnknown) {
		t.Errorf("Source() error = %v, want %v", err, inventory.ErrUnknown)
	}
	const name = v1.UniqueVolumeName("kubernetes.io/csi/d^v1")
	s.set(func() { s.known, s.volumes = true, []v1.UniqueVolumeName{name} })
	i.Changed()
	var source stream.Source[*enginev1.StorageItem]
	eventually.That(t, "it is served", func() bool {
		var err error
		source, err = i.Source()
		return err == nil
	})
	sub, err := source.Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	next(t, sub) // opened
	found := map[string]*enginev1.StorageItem{}
	for range 3 {
		m := next(t, sub)
		found[m.Key] = m.Value
	}
	if found["driver/d"].GetDriver().GetNodeId() != "n" || found["volume/"+string(name)].GetVolumeInUse() != string(name) {
		t.Errorf("the snapshot is %v, want NodeId %q and VolumeInUse %v", found, "n", string(name))
	}
	gpu := found["device/example.com/gpu"].GetDeviceResource()
	if gpu.GetName() != "example.com/gpu" || gpu.GetCapacity() != 2 || gpu.GetAllocatable() != 1 {
		t.Errorf("the devices are %v, want 2 and 1 of example.com/gpu", gpu)
	}
}

func TestOnlyChangesAreSent(t *testing.T) {
	s := &storage{known: true, drivers: []csidrivers.Node{{Driver: "a", ID: "n"}, {Driver: "b", ID: "n"}}}
	i := start(t, s)
	var source stream.Source[*enginev1.StorageItem]
	eventually.That(t, "it is served", func() bool {
		var err error
		source, err = i.Source()
		return err == nil
	})
	sub, err := source.Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for range 4 { // opened, two drivers, synced
		next(t, sub)
	}
	s.set(func() { s.drivers[1].Volumes, s.drivers[1].Topology = 7, map[string]string{"zone": "z"} })
	i.Changed()
	m := next(t, sub)
	if d := m.Value.GetDriver(); m.Key != "driver/b" || d.GetAllocatableVolumes() != 7 || d.GetTopology()["zone"] != "z" {
		t.Errorf("next() = %v, want Key %q, d.AllocatableVolumes 7 and zone %q", m, "driver/b", "z")
	}
	s.set(func() {
		degraded := storagev1.StorageHealthCondition{Status: storagev1.StorageDegraded, Reason: "Rebuild"}
		s.health = map[string][]storagev1.StorageHealthCondition{"a": {degraded}}
	})
	i.Changed()
	m = next(t, sub)
	var health storagev1.StorageHealth
	if err := health.Unmarshal(m.Value.GetDriver().GetStorageHealth()); err != nil || m.Key != "driver/a" ||
		health.Name != "a" || health.HealthConditions[0].Reason != "Rebuild" {
		t.Errorf("next() = %v with %v, %v; want Key %q and the condition", m, &health, err, "driver/a")
	}
	s.set(func() { s.drivers = s.drivers[1:] })
	i.Changed()
	if m := next(t, sub); m.Key != "driver/a" || !m.Removed {
		t.Errorf("next() = %v, want Key %q and Removed true", m, "driver/a")
	}
	s.set(func() { s.drivers[0].Volumes = 0 })
	i.Changed()
	if m := next(t, sub); m.Key != "driver/b" || m.Value.GetDriver().AllocatableVolumes != nil {
		t.Errorf("next() = %v, want Key %q and no Value.Driver.AllocatableVolumes", m, "driver/b")
	}
}
