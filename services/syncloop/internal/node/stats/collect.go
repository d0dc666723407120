package stats

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/diskusage"
)

// wholeMachine is the cgroup that everything is in.
const wholeMachine = "/"

// look is one reading of everything.
type look struct {
	*Stats
	said fromRuntime
	// nodeFs is the node's file system, layers that in which the runtime has the layers of containers; nil when they could not be read.
	nodeFs, layers *statsv1alpha1.FsStats
	// rates will be what is remembered for the next look.
	rates   map[string]podcgroups.Usage
	machine Machine
	// places will be those of the pods.
	places map[types.UID]Place
}

// collect reads everything.
func (s *Stats) collect(ctx context.Context) (*Report, error) {
	pods, known := s.cfg.Observed()
	if !known {
		return nil, errors.New("the pods are not known yet: ask again in a moment")
	}
	l := &look{
		Stats: s, said: s.patiently(ctx), rates: make(map[string]podcgroups.Usage, len(s.rates)), machine: s.cfg.Machine(),
		places: make(map[types.UID]Place, len(pods)),
	}
	summary := &statsv1alpha1.Summary{Pods: []statsv1alpha1.PodStats{}, Node: l.node()}
	for _, seen := range pods {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if podview.AnyAlive(seen) {
			summary.Pods = append(summary.Pods, l.pod(ctx, seen))
		}
	}
	slices.SortFunc(summary.Pods, func(a, b statsv1alpha1.PodStats) int {
		return cmp.Or(cmp.Compare(a.PodRef.Namespace, b.PodRef.Namespace), cmp.Compare(a.PodRef.Name, b.PodRef.Name), cmp.Compare(a.PodRef.UID, b.PodRef.UID))
	})
	s.rates = l.rates
	report := &Report{Summary: summary, Machine: l.machine, Places: l.places}
	if s.cfg.Names != nil {
		report.PodsCgroup = s.cfg.Names.Pods()
	}
	return report, nil
}

// node reads what the machine uses as a whole.
func (l *look) node() statsv1alpha1.NodeStats {
	machine, now := l.machine, l.cfg.Clock.Now()
	stats := statsv1alpha1.NodeStats{NodeName: l.cfg.NodeName, StartTime: metav1.NewTime(machine.BootedAt), Network: networkOf(machine, now)}
	if usage, err := l.cfg.Cgroups.Usage(wholeMachine); err == nil {
		usage.MemoryLimitBytes = machine.MemoryBytes
		stats.CPU, stats.Memory = l.cpu(wholeMachine, usage), memoryOf(usage)
		stats.Swap = &statsv1alpha1.SwapStats{Time: metav1.NewTime(usage.At), SwapUsageBytes: &usage.SwapBytes, SwapAvailableBytes: machine.SwapFreeBytes}
	}
	if l.cfg.Names != nil {
		if usage, err := l.cfg.Cgroups.Usage(l.cfg.Names.Pods()); err == nil {
			stats.SystemContainers = append(stats.SystemContainers, statsv1alpha1.ContainerStats{
				Name: statsv1alpha1.SystemContainerPods, StartTime: stats.StartTime, CPU: l.cpu(l.cfg.Names.Pods(), usage), Memory: memoryOf(usage),
			})
		}
	}
	if machine.MaxProcesses != nil || machine.Processes != nil {
		stats.Rlimit = &statsv1alpha1.RlimitStats{Time: metav1.NewTime(now), MaxPID: machine.MaxProcesses, NumOfRunningProcesses: machine.Processes}
	}
	if fs, err := filesystem(l.cfg.RootDir, now); err == nil {
		stats.Fs, l.nodeFs = &fs, &fs
	}
	images, layers := filesystemOf(l.said.images, now), filesystemOf(l.said.layers, now)
	if layers == nil {
		layers = images
	}
	if images != nil {
		stats.Runtime, l.layers = &statsv1alpha1.RuntimeStats{ImageFs: images, ContainerFs: layers}, layers
	}
	return stats
}

// filesystemOf is one of the runtime's file systems: how full it is, and what the runtime has there.
func filesystemOf(used *runtimeapi.FilesystemUsage, now time.Time) *statsv1alpha1.FsStats {
	if used == nil {
		return nil
	}
	fs, err := filesystem(used.GetFsId().GetMountpoint(), now)
	if err != nil {
		return nil
	}
	fs.UsedBytes, fs.InodesUsed = valueOf(used.GetUsedBytes()), cmp.Or(valueOf(used.GetInodesUsed()), fs.InodesUsed)
	return &fs
}

// pod reads what a pod uses.
func (l *look) pod(ctx context.Context, seen *lifecyclev1.PodStatus) statsv1alpha1.PodStats {
	stats := statsv1alpha1.PodStats{
		PodRef:     statsv1alpha1.PodReference{Name: seen.GetName(), Namespace: seen.GetNamespace(), UID: seen.GetUid()},
		Containers: []statsv1alpha1.ContainerStats{}, VolumeStats: l.volumes.get(types.UID(seen.GetUid())),
	}
	pod := l.cfg.Pod(types.UID(seen.GetUid()))
	sandbox := podview.Sandbox(seen)
	said := l.said.sandboxes[sandbox.GetId()]
	stats.StartTime = metav1.NewTime(podview.Time(sandbox.GetCreatedAt()))
	stats.Network = networkOfRuntime(said.GetNetwork())
	name, usage, found := l.podCgroup(seen, pod)
	if found {
		stats.CPU, stats.Memory = l.cpu(name, usage), memoryOf(usage)
		stats.ProcessStats, stats.Swap = &statsv1alpha1.ProcessStats{ProcessCount: &usage.Processes}, swapOf(usage)
	} else {
		stats.CPU, stats.Memory = cpuOfRuntime(said.GetCpu()), memoryOfRuntime(said.GetMemory())
		if said.GetProcess() != nil {
			stats.ProcessStats = &statsv1alpha1.ProcessStats{ProcessCount: valueOf(said.GetProcess().GetProcessCount())}
		}
	}
	var below []string
	if found {
		below = l.cfg.Cgroups.Below(name)
	}
	place := Place{Cgroup: name, Sandbox: sandbox.GetId(), Containers: map[string]ContainerPlace{}}
	for _, c := range seen.GetContainers() {
		if _, taken := place.Containers[c.GetName()]; podview.Running(c) && !taken {
			container, cgroup := l.container(ctx, c, name, below)
			stats.Containers = append(stats.Containers, container)
			place.Containers[c.GetName()] = ContainerPlace{Cgroup: cgroup, ID: c.GetId(), Image: c.GetImage()}
		}
	}
	l.places[types.UID(seen.GetUid())] = place
	slices.SortFunc(stats.Containers, func(a, b statsv1alpha1.ContainerStats) int { return cmp.Compare(a.Name, b.Name) })
	stats.EphemeralStorage = l.ephemeral(&stats, pod)
	return stats
}

// podCgroup finds the cgroup of a pod, which for one that nobody wants any more may be that of any class.
func (l *look) podCgroup(seen *lifecyclev1.PodStatus, pod *v1.Pod) (name string, usage podcgroups.Usage, found bool) {
	if l.cfg.Names == nil {
		return "", podcgroups.Usage{}, false
	}
	places := l.cfg.Names.Places(types.UID(seen.GetUid()))
	if pod != nil {
		if place, err := l.cfg.Names.Pod(pod); err == nil {
			places = []string{place}
		}
	}
	for _, place := range places {
		if usage, err := l.cfg.Cgroups.Usage(place); err == nil {
			return place, usage, true
		}
	}
	return "", podcgroups.Usage{}, false
}

// container reads what a container uses, the newest of its name that runs. Its cgroup is the one below its pod's that has its ID in the
// name, as runtimes name it; it is empty when there is none.
func (l *look) container(ctx context.Context, c *lifecyclev1.Container, pod string, below []string) (stats statsv1alpha1.ContainerStats, cgroup string) {
	said := l.said.containers[c.GetId()]
	stats = statsv1alpha1.ContainerStats{
		Name: c.GetName(), StartTime: metav1.NewTime(podview.Time(c.GetStartedAt())), CPU: cpuOfRuntime(said.GetCpu()), Memory: memoryOfRuntime(said.GetMemory()),
	}
	if swap := said.GetSwap(); swap != nil {
		stats.Swap = &statsv1alpha1.SwapStats{
			Time: timeOf(swap.GetTimestamp()), SwapAvailableBytes: valueOf(swap.GetSwapAvailableBytes()), SwapUsageBytes: valueOf(swap.GetSwapUsageBytes()),
		}
	}
	if i := slices.IndexFunc(below, func(name string) bool { return strings.Contains(name, c.GetId()) }); i >= 0 {
		cgroup = pod + "/" + below[i]
		if usage, err := l.cfg.Cgroups.Usage(cgroup); err == nil {
			cpu := l.cpu(cgroup, usage)
			if cpu.UsageNanoCores == nil && stats.CPU != nil {
				cpu.UsageNanoCores = stats.CPU.UsageNanoCores // the runtime has looked before
			}
			stats.CPU, stats.Memory, stats.Swap = cpu, memoryOf(usage), swapOf(usage)
		}
	}
	if layer := said.GetWritableLayer(); layer != nil {
		stats.Rootfs = part(l.layers, timeOf(layer.GetTimestamp()), valueOf(layer.GetUsedBytes()), valueOf(layer.GetInodesUsed()))
	}
	if c.GetLogPath() != "" {
		if used, err := diskusage.Of(ctx, filepath.Dir(c.GetLogPath())); err == nil {
			stats.Logs = part(l.nodeFs, metav1.NewTime(l.cfg.Clock.Now()), count(used.Bytes), count(used.Inodes))
		}
	}
	return stats, cgroup
}

// part is what takes some room on a file system.
func part(of *statsv1alpha1.FsStats, at metav1.Time, bytes, inodes *uint64) *statsv1alpha1.FsStats {
	var fs statsv1alpha1.FsStats
	if of != nil {
		fs = *of
	}
	fs.Time, fs.UsedBytes, fs.InodesUsed = at, bytes, inodes
	return &fs
}

// ephemeral is what a pod takes on the node's own disk.
func (l *look) ephemeral(stats *statsv1alpha1.PodStats, pod *v1.Pod) *statsv1alpha1.FsStats {
	usage := UsageOf(stats, pod)
	var sum diskusage.Usage
	for _, one := range []*diskusage.Usage{usage.Layers, usage.Logs, usage.Volumes} {
		if one != nil {
			sum = sum.Add(*one)
		}
	}
	return part(l.nodeFs, metav1.NewTime(l.cfg.Clock.Now()), count(sum.Bytes), count(sum.Inodes))
}

// cpu is the processor time of a cgroup, and how much it has had of late: since the last look.
func (l *look) cpu(name string, usage podcgroups.Usage) *statsv1alpha1.CPUStats {
	total := uint64(max(usage.CPU, 0))
	stats := &statsv1alpha1.CPUStats{Time: metav1.NewTime(usage.At), UsageCoreNanoSeconds: &total}
	before, known := l.Stats.rates[name]
	if window := usage.At.Sub(before.At); known && window > 0 && usage.CPU >= before.CPU {
		rate := uint64(float64(usage.CPU-before.CPU) / window.Seconds())
		stats.UsageNanoCores = &rate
	}
	l.rates[name] = usage
	return stats
}

func memoryOf(usage podcgroups.Usage) *statsv1alpha1.MemoryStats {
	stats := &statsv1alpha1.MemoryStats{
		Time: metav1.NewTime(usage.At), UsageBytes: &usage.MemoryBytes, WorkingSetBytes: &usage.WorkingSetBytes, RSSBytes: &usage.RSSBytes,
		PageFaults: &usage.PageFaults, MajorPageFaults: &usage.MajorPageFaults,
	}
	if usage.MemoryLimitBytes > 0 {
		available := usage.MemoryLimitBytes - min(usage.WorkingSetBytes, usage.MemoryLimitBytes)
		stats.AvailableBytes = &available
	}
	return stats
}

func swapOf(usage podcgroups.Usage) *statsv1alpha1.SwapStats {
	return &statsv1alpha1.SwapStats{Time: metav1.NewTime(usage.At), SwapUsageBytes: &usage.SwapBytes}
}
