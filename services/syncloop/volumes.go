package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumeprojected"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// nodeTimeout bounds the question for what memory pods may use: a volume can do with less than the exact answer.
const nodeTimeout = 2 * time.Second

// newVolumes returns the volume manager with every kind of volume. It knows what an earlier process has left.
func newVolumes(
	h *host, askNode func(context.Context) (*v1.Node, error), link *cluster.Link, events *podevents.Recorder, parts *components.Group,
) (*volumes.Manager, error) {
	swappable, memory := swappableTold("/proc/swaps", events), memoryForPods(askNode)
	manager, err := volumes.New(volumes.Config{
		PodsDir: filepath.Join(h.cfg.RootDir, "pods"), Clock: clock.RealClock{}, Events: events, Metrics: volumes.NewMetrics(h.registry),
		Tracer: h.tracer, Logger: h.logger,
		Plugins: append([]volumes.Plugin{
			&volumes.EmptyDir{Mounter: volumes.Unswapped{Mounter: volumes.Machine{}, Swappable: swappable}, Memory: memory},
			volumes.HostPath{},
			volumes.Image{},
		}, volumeprojected.Plugins(volumeprojected.Config{
			Mounter: volumes.Machine{}, Swappable: swappable, Memory: memory, Objects: link.Objects, Tokens: link.Tokens,
			TrustBundles: link.TrustBundles, Certificates: link.Certificates, Node: askNode, Clock: clock.RealClock{},
		})...),
	})
	if err != nil {
		return nil, err
	}
	parts.Run("volumes", manager.Run)
	return manager, nil
}

// nodeWarnings takes events of the node; *podevents.Recorder keeps them.
type nodeWarnings interface {
	NodeWarning(ctx context.Context, reason, message string)
}

// swappableTold returns what tells, once, that volumes in memory may come to a swap device: when there is one, by the kernel's table of
// them.
func swappableTold(table string, events nodeWarnings) func() {
	var told atomic.Bool
	return func() {
		swaps, err := os.ReadFile(table)
		const least = 2 // a line of names, and one for each device
		if err != nil || len(strings.Split(strings.TrimSpace(string(swaps)), "\n")) < least || told.Swap(true) {
			return
		}
		events.NodeWarning(context.Background(), "PossibleMemoryBackedVolumesOnDisk", "The tmpfs noswap option is not supported. "+
			"Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should no longer be considered secure.")
	}
}

// memoryForPods asks how many bytes of memory pods may use; 0 when nobody says.
func memoryForPods(node func(context.Context) (*v1.Node, error)) func(context.Context) int64 {
	return func(ctx context.Context) int64 {
		ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
		defer cancel()
		n, err := node(ctx)
		if err != nil {
			return 0
		}
		return n.Status.Allocatable.Memory().Value()
	}
}
