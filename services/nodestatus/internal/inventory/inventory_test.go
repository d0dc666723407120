package inventory_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/nodestatus/internal/inventory"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// syncloop is a stream that restarts.
type syncloop struct {
	mu    sync.Mutex
	level *stream.Level[*enginev1.StorageItem]
}

func (s *syncloop) Subscribe(ctx context.Context, token []byte) (stream.Subscription[*enginev1.StorageItem], error) {
	s.mu.Lock()
	level := s.level
	s.mu.Unlock()
	if level == nil {
		return nil, errors.New("syncloop is away")
	}
	return level.Subscribe(ctx, token)
}

// replace ends the process and starts another one, which may be nil.
func (s *syncloop) replace(level *stream.Level[*enginev1.StorageItem]) {
	s.mu.Lock()
	before := s.level
	s.level = level
	s.mu.Unlock()
	if before != nil {
		before.Close()
	}
}

func levelOf(items map[string]*enginev1.StorageItem) *stream.Level[*enginev1.StorageItem] {
	level := stream.NewLevel[*enginev1.StorageItem](stream.Config{})
	for key, item := range items {
		level.Put(key, item)
	}
	return level
}

func driver(name, id string) *enginev1.StorageItem {
	return &enginev1.StorageItem{Driver: &enginev1.CSIDriver{Name: name, NodeId: id}}
}

func volume(name string) *enginev1.StorageItem { return &enginev1.StorageItem{VolumeInUse: name} }

func device(name string, capacity, allocatable int64) *enginev1.StorageItem {
	return &enginev1.StorageItem{DeviceResource: &enginev1.DeviceResource{
		Name: name, Capacity: capacity, Allocatable: allocatable,
	}}
}

func TestNothingIsRemovedThatWasNotDeregistered(t *testing.T) {
	s, i := &syncloop{}, inventory.New()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	var mu sync.Mutex
	drivers, volumes, devices := 0, 0, 0
	go func() {
		done <- i.Run(ctx, inventory.Config{
			Source: s, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
			DriversChanged: func() { mu.Lock(); defer mu.Unlock(); drivers++ },
			VolumesChanged: func() { mu.Lock(); defer mu.Unlock(); volumes++ },
			DevicesChanged: func() { mu.Lock(); defer mu.Unlock(); devices++ },
		})
	}()
	defer func() {
		cancel()
		s.replace(nil)
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	if i.Devices() != nil {
		t.Errorf("before the first snapshot there are the devices %v", i.Devices())
	}
	if names, known := i.VolumesInUse(); known || len(names) > 0 || !i.Drivers().Since.IsZero() {
		t.Errorf("before the first snapshot there are %v, %v", names, i.Drivers())
	}
	first := levelOf(map[string]*enginev1.StorageItem{
		"driver/a": driver("a", "1"), "driver/b": driver("b", "1"), "volume/v": volume("v"), "volume/u": volume("u"),
		"device/x.io/gpu": device("x.io/gpu", 4, 3),
	})
	s.replace(first)
	eventually.That(t, "the volumes are known", func() bool { _, known := i.VolumesInUse(); return known })
	if names, _ := i.VolumesInUse(); !slices.Equal(names, []v1.UniqueVolumeName{"u", "v"}) {
		t.Errorf("the volumes are %v, want %v", names, []v1.UniqueVolumeName{"u", "v"})
	}
	first.Delete("driver/a")
	first.Delete("volume/v")
	eventually.That(t, "a is gone", func() bool { return i.Drivers().Gone["a"] })
	eventually.That(t, "v is not in use", func() bool { names, _ := i.VolumesInUse(); return len(names) == 1 })
	first.Put("device/x.io/gpu", device("x.io/gpu", 4, 2))
	eventually.That(t, "a device is unhealthy", func() bool {
		return i.Devices()["x.io/gpu"] == nodeobject.Amounts{Capacity: 4, Allocatable: 2}
	})
	since := i.Drivers().Since
	s.replace(nil)
	if d := i.Drivers(); d.Known["b"] == nil || !d.Gone["a"] || len(d.Known) != 1 {
		t.Errorf("without syncloop there is %v", d)
	}
	s.replace(levelOf(map[string]*enginev1.StorageItem{"driver/a": driver("a", "2"), "volume/w": volume("w")}))
	eventually.That(t, "the new one is followed", func() bool { return i.Drivers().Known["a"] != nil })
	eventually.That(t, "its snapshot is complete", func() bool { return i.Drivers().Since.After(since) })
	d := i.Drivers()
	if d.Gone["a"] || d.Gone["b"] || d.Known["b"] != nil || d.Known["a"].GetNodeId() != "2" {
		t.Errorf("a driver that is not registered again yet makes it %v", d)
	}
	if names, _ := i.VolumesInUse(); !slices.Equal(names, []v1.UniqueVolumeName{"w"}) {
		t.Errorf("the volumes are %v, want %v", names, []v1.UniqueVolumeName{"w"})
	}
	if gone, known := i.Devices()["x.io/gpu"]; !known || gone != (nodeobject.Amounts{}) {
		t.Errorf("a resource that is not expected any more is %v, %v, want 0", gone, known)
	}
	mu.Lock()
	defer mu.Unlock()
	if devices < 3 {
		t.Errorf("%d changes of devices are notified", devices)
	}
	if drivers < 3 || volumes < 3 {
		t.Errorf("%d changes of drivers and %d of volumes are notified", drivers, volumes)
	}
}
