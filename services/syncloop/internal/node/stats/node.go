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
	// nodePeriod is how often it is read what is left of the node, as the kubelet does.
	nodePeriod = 10 * time.Second
	// placePeriod is how often the runtime is asked where it keeps images, and placeTimeout how long it has: it answers the same.
	placePeriod  = 5 * time.Minute
	placeTimeout = 5 * time.Second
)

// nodeBook is what is left of the node.
type nodeBook struct {
	mu        sync.Mutex
	readings  []*enginev1.SignalReading
	dedicated bool
}

// Readings says what is left of that which nodestatus cannot read: the file system of images and the memory that all pods may use
// together, as of the last look. What is not known is left out. It does not wait.
func (s *Stats) Readings() []*enginev1.SignalReading {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	return slices.Clone(s.node.readings)
}

// DedicatedImageFS tells whether images and the layers of containers have a file system of their own. It is false until that is known.
func (s *Stats) DedicatedImageFS() bool {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	return s.node.dedicated
}

// watchNode reads what is left of the node until ctx ends, and returns its error.
func (s *Stats) watchNode(ctx context.Context) error {
	ticker := s.cfg.Clock.NewTicker(nodePeriod)
	defer ticker.Stop()
	var images string
	var asked time.Time
	for {
		if images == "" || s.cfg.Clock.Since(asked) >= placePeriod {
			place, err := s.imagesPlace(ctx)
			if err == nil {
				images, asked = place, s.cfg.Clock.Now()
			} else if ctx.Err() == nil {
				s.cfg.Logger.DebugContext(ctx, "it is not known where the runtime keeps images", telemetry.KeyError, err)
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

// imagesPlace asks the runtime where it keeps images.
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
	return "", errors.New("the runtime does not say it")
}

func (s *Stats) readNode(images string) (readings []*enginev1.SignalReading, dedicated bool) {
	now := s.cfg.Clock.Now()
	add := func(signal string, available, capacity uint64) {
		readings = append(readings, &enginev1.SignalReading{
			Signal: signal, Available: int64(available), Capacity: int64(capacity), ReadAt: timestamppb.New(now), //nolint:gosec // less than 8 EiB
		})
	}
	if images != "" {
		if fs, err := filesystem(images, now); err == nil && *fs.CapacityBytes > 0 {
			add("imagefs.available", *fs.AvailableBytes, *fs.CapacityBytes)
			if *fs.Inodes > 0 { // else it does not count them
				add("imagefs.inodesFree", *fs.InodesFree, *fs.Inodes)
			}
		}
		var of, node unix.Stat_t
		dedicated = unix.Stat(images, &of) == nil && unix.Stat(s.cfg.RootDir, &node) == nil && of.Dev != node.Dev
	}
	if s.cfg.Names != nil {
		if usage, err := s.cfg.Cgroups.Usage(s.cfg.Names.Pods()); err == nil && usage.MemoryLimitBytes > 0 {
			add("allocatableMemory.available", usage.MemoryLimitBytes-min(usage.WorkingSetBytes, usage.MemoryLimitBytes), usage.MemoryLimitBytes)
		}
	}
	return readings, dedicated
}
