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

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumeprojected"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// nodeTimeout bounds the question for what memory pods may use: a volume can do with less than the exact answer.
const nodeTimeout = 2 * time.Second

// newVolumes makes the volume manager with every kind of volume that there is. It knows what an earlier process has left.
func newVolumes(cfg nodeconfig.Config, tel *telemetry.Telemetry, node func(context.Context) (*v1.Node, error), e *engine) (*volumes.Manager, error) {
	realClock := clock.RealClock{}
	swappable := swappableTold("/proc/swaps", e.events)
	content := volumeprojected.Config{Mounter: volumes.Machine{}, Swappable: swappable, Memory: memoryForPods(node), Objects: e.objects, Node: node, Clock: realClock}
	if e.identities != nil {
		content.Tokens, content.TrustBundles, content.Certificates = e.identities.tokens, e.identities.bundles, e.identities.certificates
	}
	return volumes.New(volumes.Config{
		PodsDir: filepath.Join(cfg.RootDir, "pods"), Clock: realClock, Events: e.events, Metrics: volumes.NewMetrics(e.metrics.Registry), Tracer: tel.Tracer, Logger: tel.Logger,
		Plugins: append([]volumes.Plugin{
			&volumes.EmptyDir{Mounter: volumes.Unswapped{Mounter: volumes.Machine{}, Swappable: swappable}, Memory: memoryForPods(node)},
			volumes.HostPath{},
			volumes.Image{},
		}, volumeprojected.Plugins(content)...),
	})
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
