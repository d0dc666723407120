package stats

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// nodePeriod is how often the node's free resources are read. It is the kubelet's value.
	nodePeriod = 10 * time.Second
	// placePeriod is how often the runtime is asked for the directory of its images, and placeTimeout the timeout of the
	// call. The directory rarely changes.
	placePeriod  = 5 * time.Minute
	placeTimeout = 5 * time.Second
)

// nodeBook holds the node's free resources.
type nodeBook struct {
	mu       sync.Mutex
	readings []*enginev1.SignalReading
	disks    Disks
}

// Disks tells which file systems images and the layers of containers are on.
type Disks int

const (
	// OneDisk has both on the node's file system. It is assumed until the runtime has answered.
	OneDisk Disks = iota
	// ImageDisk has both on a file system of their own.
	ImageDisk
	// SplitDisks has images and layers on different file systems.
	SplitDisks
)

// places are the directories of images and layers.
type places struct{ images, layers string }

// Readings returns the free resources that nodestatus cannot read itself: the file system of images, that of containers
// if it is another one, and the memory that all pods together may use. They are from the last measurement. Unknown
// values are left out. It does not block.
func (s *Stats) Readings() []*enginev1.SignalReading {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	return slices.Clone(s.node.readings)
}

// Disks returns which file systems images and the layers of containers are on.
func (s *Stats) Disks() Disks {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	return s.node.disks
}

// watchNode reads the node's free resources until ctx ends. It returns the error of ctx.
func (s *Stats) watchNode(ctx context.Context) error {
	ticker := s.cfg.Clock.NewTicker(nodePeriod)
	defer ticker.Stop()
	var at places
	var checkedAt time.Time
	for {
		if at.images == "" || s.cfg.Clock.Since(checkedAt) >= placePeriod {
			found, err := s.findPlaces(ctx)
			if err == nil {
				at, checkedAt = found, s.cfg.Clock.Now()
			} else if ctx.Err() == nil {
				s.cfg.Logger.DebugContext(ctx, "the directory of the runtime's images is unknown", telemetry.KeyError, err)
			}
		}
		readings, disks := s.readNode(at)
		s.node.mu.Lock()
		s.node.readings, s.node.disks = readings, disks
		s.node.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// findPlaces returns the directories of the runtime's images and layers, which may be the same.
func (s *Stats) findPlaces(ctx context.Context) (places, error) {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	service, err := s.cfg.Images(ctx)
	if err != nil {
		return places{}, err
	}
	info, err := service.ImageFsInfo(cri.Quiet(ctx))
	if err != nil {
		return places{}, err
	}
	if images := firstOf(info.GetImageFilesystems()).GetFsId().GetMountpoint(); images != "" {
		layers := firstOf(info.GetContainerFilesystems()).GetFsId().GetMountpoint()
		return places{images: images, layers: cmp.Or(layers, images)}, nil
	}
	return places{}, errors.New("the runtime does not report the directory of its images")
}

func (s *Stats) readNode(at places) (readings []*enginev1.SignalReading, disks Disks) {
	now := s.cfg.Clock.Now()
	add := func(signal string, available, capacity uint64) {
		readings = append(readings, &enginev1.SignalReading{
			Signal: signal, ReadAt: timestamppb.New(now),
			Available: int64(available), Capacity: int64(capacity), //nolint:gosec // less than 8 EiB
		})
	}
	addDisk := func(name, dir string) {
		if fs, err := filesystem(dir, now); err == nil && *fs.CapacityBytes > 0 {
			add(name+".available", *fs.AvailableBytes, *fs.CapacityBytes)
			if *fs.Inodes > 0 { // Some file systems do not count inodes.
				add(name+".inodesFree", *fs.InodesFree, *fs.Inodes)
			}
		}
	}
	if at.images != "" {
		addDisk("imagefs", at.images)
		disks = disksOf(at, s.cfg.RootDir)
	}
	if disks == SplitDisks {
		addDisk("containerfs", at.layers)
	}
	if s.cfg.Names != nil {
		usage, err := s.cfg.Cgroups.Usage(s.cfg.Names.Pods())
		if limit := usage.MemoryLimitBytes; err == nil && limit > 0 {
			add("allocatableMemory.available", limit-min(usage.WorkingSetBytes, limit), limit)
		}
	}
	return readings, disks
}

// disksOf compares the file systems of images, layers and of the node.
func disksOf(at places, root string) Disks {
	var images, layers, node unix.Stat_t
	if unix.Stat(at.images, &images) != nil || unix.Stat(root, &node) != nil {
		return OneDisk
	}
	if unix.Stat(at.layers, &layers) == nil && layers.Dev != images.Dev {
		return SplitDisks
	}
	if images.Dev != node.Dev {
		return ImageDisk
	}
	return OneDisk
}
