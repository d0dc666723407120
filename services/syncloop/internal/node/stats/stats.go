// Package stats says what each pod, each container and the node use: processor, memory, processes, network and disk, in the types of
// the kubelet's /stats/summary. Who asks is the HTTP API, for `kubectl top` and the autoscalers, and package eviction, which chooses whom
// to end.
//
// Processor, memory and processes are the kernel's own, from the cgroups of the pods; what only the runtime knows, a container's
// network and the layer that it writes, is the runtime's, and what volumes take is measured now and then. Each of the three is read
// apart, by one goroutine, when somebody asks and what there is has become old: however many ask, it costs the same, and a runtime that
// hangs leaves out what is its own and holds up nobody.
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
	// maxAge is how old what is given out may be: less than the time between two questions of a metrics server, and long enough that
	// several who ask at once cost no more than one.
	maxAge = 5 * time.Second
	// runtimePatience is how long the runtime is waited for. What it said before is used when it takes longer, up to runtimeMaxAge.
	runtimePatience = 2 * time.Second
	runtimeMaxAge   = time.Minute
)

// Cgroups reads what cgroups use; *podcgroups.Machine does.
type Cgroups interface {
	// Usage fails with fs.ErrNotExist for a cgroup that is not there.
	Usage(name string) (podcgroups.Usage, error)
	// Below lists the names of those directly below one.
	Below(name string) []string
}

// Config is what Stats need.
type Config struct {
	// NodeName is the node's name.
	NodeName string
	// Observed lists what pleg has observed of all pods: (*podstore.Store).AllObserved. Required.
	Observed func() ([]*lifecyclev1.PodStatus, bool)
	// Pod has a pod as it is wanted, nil for one that is not: (*podstore.Store).Pod. Required.
	Pod func(types.UID) *v1.Pod
	// Cgroups are the machine's. Required.
	Cgroups Cgroups
	// Names says what the cgroups of pods are called; nil when pods have none of their own.
	Names *podcgroups.Names
	// Runtime and Images wait for the runtime's services and hand them out. Required.
	Runtime func(context.Context) (internalapi.RuntimeService, error)
	Images  func(context.Context) (internalapi.ImageManagerService, error)
	// VolumePath is where a volume of a pod is, empty for one that is no folder. Required.
	VolumePath func(pod *v1.Pod, v *v1.Volume) string
	// VolumePeriod is how often volumes are measured, volumeStatsAggPeriod of the KubeletConfiguration; 0 or less is never.
	VolumePeriod time.Duration
	// RootDir is the folder of the pods: its file system is the node's.
	RootDir string
	// Machine reads the rest of the machine: ReadMachine.
	Machine func() Machine
	// Clock is the time. Required.
	Clock  clock.WithTicker
	Logger *slog.Logger
}

// Stats gives out what is used. Make it with New; nothing is read before Run.
type Stats struct {
	cfg     Config
	report  *reading[*Report]
	runtime *reading[fromRuntime]
	volumes volumeBook
	node    nodeBook

	// rates is of the goroutine that reads the summary alone: what each cgroup had used when it was read last.
	rates map[string]podcgroups.Usage
}

// New makes Stats.
func New(cfg Config) *Stats {
	s := &Stats{cfg: cfg, rates: map[string]podcgroups.Usage{}}
	s.report = newReading(cfg.Clock, s.collect)
	s.runtime = newReading(cfg.Clock, s.askRuntime)
	return s
}

// Run reads until ctx ends, and returns its error.
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

// PodUsage is what a pod uses, as far as it counts for whom to end when the node has too little left. Nil is not known.
type PodUsage struct {
	// MemoryBytes is its working set, Processes its processes and threads.
	MemoryBytes, Processes *uint64
	// Layers is what its containers have written outside of volumes, Logs what they have logged, Volumes what is in its volumes on the
	// node's own disk.
	Layers, Logs, Volumes *diskusage.Usage
}

// UsageOf takes out of what a Summary has of a pod what counts for whom to end. A nil pod is one that is not known any more, of whose
// volumes nothing counts.
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

// addFs adds what is known of a part.
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
