package syncloop

import (
	"context"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"
	v1 "k8s.io/api/core/v1"
	"k8s.io/mount-utils"
	"k8s.io/utils/clock"
	utilexec "k8s.io/utils/exec"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumeprojected"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// nodeTimeout bounds the request for the memory that pods may use. A volume works without the exact value.
const nodeTimeout = 2 * time.Second

// newVolumes returns the volume manager with every kind of volume. It knows the volumes of earlier processes.
func newVolumes(
	h *host, askNode func(context.Context) (*v1.Node, error), link *cluster.Link, events *podevents.Recorder,
	stored *storage, parts *components.Group,
) (*volumes.Manager, error) {
	swappable, memory := swapWarning(procfs.DefaultMountPoint, events), memoryForPods(askNode)
	kinds, local := persistentKinds(events, stored, link)
	manager, err := volumes.New(volumes.Config{
		PodsDir: filepath.Join(h.cfg.RootDir, "pods"), Clock: clock.RealClock{}, Events: events,
		Metrics: stored.operations, Tracer: h.tracer, Logger: h.logger,
		Plugins: slices.Concat([]volumes.Plugin{
			&volumes.EmptyDir{Mounter: volumes.Unswapped{Mounter: volumes.Machine{}, Swappable: swappable}, Memory: memory},
			volumes.HostPath{},
			volumes.Image{},
		}, volumeprojected.Plugins(volumeprojected.Config{
			Mounter: volumes.Machine{}, Swappable: swappable, Memory: memory, Objects: link.Objects, Tokens: link.Tokens,
			TrustBundles: link.TrustBundles, Certificates: link.Certificates, Node: askNode, Clock: clock.RealClock{},
		}), persistentvolumes.Plugins(persistentvolumes.Config{
			Claims: link.Claims, Kinds: kinds, Node: askNode, Labels: &selinux.Labels{
				Host: selinux.Machine{}, EveryMode: nodeconfig.MountsLabels(&h.cfg.Kubelet),
				Metrics: selinux.NewMetrics(h.registry),
			},
		})),
	})
	if err != nil {
		return nil, err
	}
	parts.Run("volumes", manager.Run)
	parts.Run("local volumes without pods", func(ctx context.Context) error {
		if err := local.Sweep(ctx, h.cfg.RootDir); err != nil && ctx.Err() == nil {
			h.logger.Warn("a local volume that no pod uses cannot be removed; the next start tries it again",
				telemetry.KeyError, err)
		}
		<-ctx.Done()
		return ctx.Err()
	})
	return manager, nil
}

// persistentKinds returns the kinds of persistent volumes.
func persistentKinds(
	events *podevents.Recorder, stored *storage, link *cluster.Link,
) (kinds []persistentvolumes.Kind, local *persistentvolumes.Local) {
	local = &persistentvolumes.Local{
		Mounter: volumes.Machine{}, Formatter: persistentvolumes.NewFormatter(), Events: events, Clock: clock.RealClock{},
		Measured: stored.operations.Done, Expansion: &persistentvolumes.Expansion{
			Claims: link.Claims, Resizer: mount.NewResizeFs(utilexec.New()), Events: events,
		},
	}
	return []persistentvolumes.Kind{stored.volumes, local, persistentvolumes.HostPath{}, persistentvolumes.NewNFS()}, local
}

// nodeWarnings records events of the node: *podevents.Recorder.
type nodeWarnings interface {
	NodeWarning(ctx context.Context, reason, message string)
}

// swapWarning returns a function that records an event that volumes in memory may be swapped to disk. It does so once,
// and only if the machine has swap space according to the swaps file of the proc file system.
func swapWarning(proc string, events nodeWarnings) func() {
	var warned atomic.Bool
	return func() {
		fs, err := procfs.NewFS(proc)
		if err != nil {
			return
		}
		swaps, err := fs.Swaps()
		if err != nil || len(swaps) == 0 || warned.Swap(true) {
			return
		}
		events.NodeWarning(context.Background(), "PossibleMemoryBackedVolumesOnDisk", "The tmpfs noswap option is not supported. "+
			"Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should no longer be considered secure.")
	}
}

// memoryForPods returns a function that returns the bytes of memory that pods may use, or 0 if they are not known.
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
