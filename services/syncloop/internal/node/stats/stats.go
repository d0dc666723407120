// Package stats reports the resource usage of each pod, each container and the node: CPU, memory, processes, network
// and disk, in the types of the kubelet's /stats/summary. It is called by the HTTP API, for `kubectl top` and the
// autoscalers, and by package eviction, which decides which pods to evict.
//
// CPU, memory and processes are read from the cgroups of the pods. The runtime reports what only it knows: the network
// and the writable layers of containers. The usage of volumes is measured periodically. Each of the three is read by a
// goroutine of its own. The first two read on demand, when the last value is too old, so the cost does not grow with
// the number of callers. If the runtime hangs, only its values are missing, and no caller is blocked.
package stats

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/diskusage"
)

const (
	// maxAge is the maximum age of a returned Report. It is shorter than the scrape interval of a metrics server, and long
	// enough that simultaneous callers share one measurement.
	maxAge = 5 * time.Second
	// runtimeTimeout is how long to wait for the runtime. After that the last statistics are used, up to runtimeMaxAge
	// old.
	runtimeTimeout = 2 * time.Second
	runtimeMaxAge  = time.Minute
)

// Cgroups reads the usage of cgroups: *podcgroups.Machine.
type Cgroups interface {
	// Usage returns fs.ErrNotExist for a cgroup that does not exist.
	Usage(name string) (podcgroups.Usage, error)
	// Below returns the names of the direct children of a cgroup.
	Below(name string) ([]string, error)
}

// Config configures Stats.
type Config struct {
	// NodeName is the node's name.
	NodeName string
	// Observed lists what pleg has observed of all pods: (*podstore.Store).AllObserved. Required.
	Observed func() ([]*lifecyclev1.PodStatus, bool)
	// Pod returns a desired pod, or nil if it is not desired: (*podstore.Store).Pod. Required.
	Pod func(types.UID) *v1.Pod
	// Cgroups reads the cgroups of the machine. Required.
	Cgroups Cgroups
	// Names returns the names of pods' cgroups; nil if pods have no cgroups.
	Names *podcgroups.Names
	// Runtime and Images wait for the runtime's services and return them. Required.
	Runtime func(context.Context) (internalapi.RuntimeService, error)
	Images  func(context.Context) (internalapi.ImageManagerService, error)
	// VolumePath returns the directory of a pod's volume, or an empty string if the volume has none. Required.
	VolumePath func(pod *v1.Pod, v *v1.Volume) string
	// VolumeUsage measures a volume of the cluster, as (*volumes.Manager).Usage: nil if its usage is that of the file
	// system at VolumePath. It may hang. Nil measures no such volumes.
	VolumeUsage func(ctx context.Context, pod *v1.Pod, v *v1.Volume) (*statsv1alpha1.FsStats, error)
	// VolumePeriod is how often volumes are measured: volumeStatsAggPeriod of the KubeletConfiguration. Volumes are not
	// measured if it is 0 or less.
	VolumePeriod time.Duration
	// RootDir is the root directory of pods. Its file system is the node's.
	RootDir string
	// HugePageAware subtracts huge pages from the available memory of the node, because no working set has them.
	HugePageAware bool
	// Machine reads the other state of the machine: ReadMachine. Required.
	Machine func() Machine
	// Clock is the time. Required.
	Clock  clock.WithTicker
	Logger *slog.Logger
}

// Stats measures resource usage. Create it with New. It reads nothing before Run.
type Stats struct {
	cfg     Config
	report  *reading[*Report]
	runtime *reading[runtimeStats]
	volumes volumeBook
	cluster clusterBook
	node    nodeBook

	// rates has the last usage of each cgroup. Only the goroutine that collects Reports uses it.
	rates map[string]podcgroups.Usage
}

// New returns Stats.
func New(cfg Config) *Stats {
	s := &Stats{cfg: cfg, rates: map[string]podcgroups.Usage{}, cluster: clusterBook{
		last: map[clusterKey]statsv1alpha1.VolumeStats{}, running: map[clusterKey]chan struct{}{},
	}}
	s.report = newReading(cfg.Clock, s.collect)
	s.runtime = newReading(cfg.Clock, s.askRuntime)
	return s
}

// Run measures until ctx ends. It returns the error of ctx.
func (s *Stats) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.report.run(ctx) })
	group.Go(func() error { return s.runtime.run(ctx) })
	group.Go(func() error { return s.watchNode(ctx) })
	if s.cfg.VolumePeriod > 0 {
		group.Go(func() error { return s.measureVolumes(ctx) })
	}
	return group.Wait()
}

// PodUsage is the usage of a pod that matters for evictions. Nil values are not known.
type PodUsage struct {
	// MemoryBytes is the working set, and Processes the number of processes and threads.
	MemoryBytes, Processes *uint64
	// Layers is the usage of the containers' writable layers, Logs that of their logs, and Volumes that of the volumes on
	// the node's own disk.
	Layers, Logs, Volumes *diskusage.Usage
}

// UsageOf returns the usage that matters for evictions from the statistics of a pod. A nil pod is not known any more;
// its volumes are not counted.
func UsageOf(stats *statsv1alpha1.PodStats, pod *v1.Pod) PodUsage {
	var usage PodUsage
	if stats.Memory != nil {
		usage.MemoryBytes = stats.Memory.WorkingSetBytes
	}
	if stats.ProcessStats != nil {
		usage.Processes = stats.ProcessStats.ProcessCount
	}
	for i := range stats.Containers {
		usage.Layers = addFs(usage.Layers, stats.Containers[i].Rootfs)
		usage.Logs = addFs(usage.Logs, stats.Containers[i].Logs)
	}
	if pod == nil {
		return usage
	}
	ephemeral := map[string]bool{}
	for i := range pod.Spec.Volumes {
		ephemeral[pod.Spec.Volumes[i].Name] = isOnNodeDisk(&pod.Spec.Volumes[i])
	}
	for i := range stats.VolumeStats {
		if volume := &stats.VolumeStats[i]; ephemeral[volume.Name] {
			usage.Volumes = addFs(usage.Volumes, &volume.FsStats)
		}
	}
	return usage
}

// addFs adds the usage of a part, if it is known.
func addFs(sum *diskusage.Usage, fs *statsv1alpha1.FsStats) *diskusage.Usage {
	if fs == nil || fs.UsedBytes == nil {
		return sum
	}
	if sum == nil {
		sum = &diskusage.Usage{}
	}
	more := diskusage.Usage{Bytes: int64(*fs.UsedBytes)} //nolint:gosec // less than 8 EiB
	if fs.InodesUsed != nil {
		more.Inodes = int64(*fs.InodesUsed) //nolint:gosec // as above
	}
	*sum = sum.Add(more)
	return sum
}
