package stats

import (
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
	mu        sync.Mutex
	readings  []*enginev1.SignalReading
	dedicated bool
}

// Readings returns the free resources that nodestatus cannot read itself: the file system of images, and the memory
// that all pods together may use. They are from the last measurement. Unknown values are left out. It does not block.
func (s *Stats) Readings() []*enginev1.SignalReading {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	return slices.Clone(s.node.readings)
}

// DedicatedImageFS reports whether images and containers' layers are on a file system of their own. It returns false
// until that is known.
func (s *Stats) DedicatedImageFS() bool {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	return s.node.dedicated
}

// watchNode reads the node's free resources until ctx ends. It returns the error of ctx.
func (s *Stats) watchNode(ctx context.Context) error {
	ticker := s.cfg.Clock.NewTicker(nodePeriod)
	defer ticker.Stop()
	var images string
	var checkedAt time.Time
	for {
		if images == "" || s.cfg.Clock.Since(checkedAt) >= placePeriod {
			place, err := s.imagesPlace(ctx)
			if err == nil {
				images, checkedAt = place, s.cfg.Clock.Now()
			} else if ctx.Err() == nil {
				s.cfg.Logger.DebugContext(ctx, "the directory of the runtime's images is unknown", telemetry.KeyError, err)
			}
		}
		readings, dedicated := s.readNode(images)
		s.node.mu.Lock()
		s.node.readings, s.node.dedicated = readings, dedicated
		s.node.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// imagesPlace returns the directory of the runtime's images.
func (s *Stats) imagesPlace(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	service, err := s.cfg.Images(ctx)
	if err != nil {
		return "", err
	}
	info, err := service.ImageFsInfo(cri.Quiet(ctx))
	if err != nil {
		return "", err
	}
	if place := firstOf(info.GetImageFilesystems()).GetFsId().GetMountpoint(); place != "" {
		return place, nil
	}
	return "", errors.New("the runtime does not report the directory of its images")
}

func (s *Stats) readNode(images string) (readings []*enginev1.SignalReading, dedicated bool) {
	now := s.cfg.Clock.Now()
	add := func(signal string, available, capacity uint64) {
		readings = append(readings, &enginev1.SignalReading{
			Signal: signal, ReadAt: timestamppb.New(now),
			Available: int64(available), Capacity: int64(capacity), //nolint:gosec // less than 8 EiB
		})
	}
	if images != "" {
		if fs, err := filesystem(images, now); err == nil && *fs.CapacityBytes > 0 {
			add("imagefs.available", *fs.AvailableBytes, *fs.CapacityBytes)
			if *fs.Inodes > 0 { // Some file systems do not count inodes.
				add("imagefs.inodesFree", *fs.InodesFree, *fs.Inodes)
			}
		}
		var imageFS, nodeFS unix.Stat_t
		dedicated = unix.Stat(images, &imageFS) == nil && unix.Stat(s.cfg.RootDir, &nodeFS) == nil &&
			imageFS.Dev != nodeFS.Dev
	}
	if s.cfg.Names != nil {
		usage, err := s.cfg.Cgroups.Usage(s.cfg.Names.Pods())
		if limit := usage.MemoryLimitBytes; err == nil && limit > 0 {
			add("allocatableMemory.available", limit-min(usage.WorkingSetBytes, limit), limit)
		}
	}
	return readings, dedicated
}
