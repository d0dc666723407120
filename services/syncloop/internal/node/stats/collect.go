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
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/diskusage"
)

// wholeMachine is the root cgroup.
const wholeMachine = "/"

// collector collects one Report.
type collector struct {
	*Stats
	runtime runtimeStats
	// nodeFs is the node's file system. layers is the file system of the containers' layers. Each is nil if it could not
	// be read.
	nodeFs, layers *statsv1alpha1.FsStats
	// rates becomes Stats.rates for the next Report.
	rates   map[string]podcgroups.Usage
	machine Machine
	// places becomes Report.Places.
	places map[types.UID]Place
}

// collect reads a Report.
func (s *Stats) collect(ctx context.Context) (*Report, error) {
	pods, known := s.cfg.Observed()
	if !known {
		return nil, errors.New("the pods are not known yet: ask again in a moment")
	}
	l := &collector{
		Stats: s, runtime: s.currentRuntime(ctx), machine: s.cfg.Machine(),
		rates:  make(map[string]podcgroups.Usage, len(s.rates)),
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
		x, y := a.PodRef, b.PodRef
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	})
	s.rates = l.rates
	report := &Report{Summary: summary, Machine: l.machine, Places: l.places}
	if s.cfg.Names != nil {
		report.PodsCgroup = s.cfg.Names.Pods()
	}
	return report, nil
}

// node reads the usage of the whole machine.
func (l *collector) node() statsv1alpha1.NodeStats {
	machine, now := l.machine, l.cfg.Clock.Now()
	stats := statsv1alpha1.NodeStats{
		NodeName: l.cfg.NodeName, StartTime: metav1.NewTime(machine.BootedAt), Network: networkOf(machine, now),
	}
	if usage, err := l.cfg.Cgroups.Usage(wholeMachine); err == nil {
		usage.MemoryLimitBytes = machine.MemoryBytes
		stats.CPU, stats.Memory, stats.IO = l.cpu(wholeMachine, usage), memoryOf(usage), ioOf(usage)
		if available := stats.Memory.AvailableBytes; available != nil && l.cfg.HugePageAware {
			*available -= min(*available, machine.HugePageBytes)
		}
		stats.Swap = swapOf(usage)
		stats.Swap.SwapAvailableBytes = machine.SwapFreeBytes
	}
	if l.cfg.Names != nil {
		if usage, err := l.cfg.Cgroups.Usage(l.cfg.Names.Pods()); err == nil {
			stats.SystemContainers = append(stats.SystemContainers, statsv1alpha1.ContainerStats{
				Name: statsv1alpha1.SystemContainerPods, StartTime: stats.StartTime,
				CPU: l.cpu(l.cfg.Names.Pods(), usage), Memory: memoryOf(usage), IO: ioOf(usage),
			})
		}
	}
	if machine.MaxProcesses != nil || machine.Processes != nil {
		stats.Rlimit = &statsv1alpha1.RlimitStats{
			Time: metav1.NewTime(now), MaxPID: machine.MaxProcesses, NumOfRunningProcesses: machine.Processes,
		}
	}
	if fs, err := filesystem(l.cfg.RootDir, now); err == nil {
		stats.Fs, l.nodeFs = &fs, &fs
	}
	images, layers := filesystemOf(l.runtime.images, now), filesystemOf(l.runtime.layers, now)
	if layers == nil {
		layers = images
	}
	if images != nil {
		stats.Runtime, l.layers = &statsv1alpha1.RuntimeStats{ImageFs: images, ContainerFs: layers}, layers
	}
	return stats
}

// filesystemOf returns one of the runtime's file systems: its capacity, and what the runtime uses of it.
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

// pod reads the usage of a pod.
func (l *collector) pod(ctx context.Context, seen *lifecyclev1.PodStatus) statsv1alpha1.PodStats {
	stats := statsv1alpha1.PodStats{
		PodRef:     statsv1alpha1.PodReference{Name: seen.GetName(), Namespace: seen.GetNamespace(), UID: seen.GetUid()},
		Containers: []statsv1alpha1.ContainerStats{}, VolumeStats: l.volumes.get(types.UID(seen.GetUid())),
	}
	pod := l.cfg.Pod(types.UID(seen.GetUid()))
	sandbox := podview.Sandbox(seen)
	measured := l.runtime.sandboxes[sandbox.GetId()]
	stats.StartTime = metav1.NewTime(podview.Time(sandbox.GetCreatedAt()))
	stats.Network = networkOfRuntime(measured.GetNetwork())
	name, usage, found := l.podCgroup(seen, pod)
	if found {
		stats.CPU, stats.Memory, stats.IO = l.cpu(name, usage), memoryOf(usage), ioOf(usage)
		stats.ProcessStats, stats.Swap = &statsv1alpha1.ProcessStats{ProcessCount: &usage.Processes}, swapOf(usage)
	} else {
		stats.CPU, stats.Memory = cpuOfRuntime(measured.GetCpu()), memoryOfRuntime(measured.GetMemory())
		stats.IO = ioOfRuntime(measured.GetIo())
		if processes := measured.GetProcess(); processes != nil {
			stats.ProcessStats = &statsv1alpha1.ProcessStats{ProcessCount: valueOf(processes.GetProcessCount())}
		}
	}
	var below []string
	if found {
		var err error
		if below, err = l.cfg.Cgroups.Below(name); err != nil {
			l.cfg.Logger.DebugContext(ctx, "the usage of containers is the runtime's, because their cgroups cannot be listed",
				telemetry.KeyPod, seen.GetNamespace()+"/"+seen.GetName(), telemetry.KeyError, err)
		}
	}
	place := Place{Cgroup: name, Sandbox: sandbox.GetId(), Containers: map[string]ContainerPlace{}}
	for _, c := range seen.GetContainers() { // newest first
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

// podCgroup finds the cgroup of a pod. If the pod is not desired any more, its QoS class is unknown, so the cgroups of
// all classes are tried.
func (l *collector) podCgroup(
	seen *lifecyclev1.PodStatus, pod *v1.Pod,
) (name string, usage podcgroups.Usage, found bool) {
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

// container reads the usage of a container. Its cgroup is the child of the pod's cgroup that has the container's ID in
// its name, as runtimes name it; cgroup is empty if there is none.
func (l *collector) container(
	ctx context.Context, c *lifecyclev1.Container, pod string, below []string,
) (stats statsv1alpha1.ContainerStats, cgroup string) {
	measured := l.runtime.containers[c.GetId()]
	stats = statsv1alpha1.ContainerStats{
		Name: c.GetName(), StartTime: metav1.NewTime(podview.Time(c.GetStartedAt())),
		CPU: cpuOfRuntime(measured.GetCpu()), Memory: memoryOfRuntime(measured.GetMemory()),
		IO: ioOfRuntime(measured.GetIo()),
	}
	if swap := measured.GetSwap(); swap != nil {
		stats.Swap = &statsv1alpha1.SwapStats{
			Time:               timeOf(swap.GetTimestamp()),
			SwapAvailableBytes: valueOf(swap.GetSwapAvailableBytes()), SwapUsageBytes: valueOf(swap.GetSwapUsageBytes()),
		}
	}
	if i := slices.IndexFunc(below, func(name string) bool { return strings.Contains(name, c.GetId()) }); i >= 0 {
		cgroup = pod + "/" + below[i]
		if usage, err := l.cfg.Cgroups.Usage(cgroup); err == nil {
			cpu := l.cpu(cgroup, usage)
			if cpu.UsageNanoCores == nil && stats.CPU != nil {
				cpu.UsageNanoCores = stats.CPU.UsageNanoCores // the runtime may have measured it before
			}
			stats.CPU, stats.Memory, stats.Swap = cpu, memoryOf(usage), swapOf(usage)
			if io := ioOf(usage); io != nil {
				stats.IO = io
			}
		}
	}
	if layer := measured.GetWritableLayer(); layer != nil {
		used, inodes := valueOf(layer.GetUsedBytes()), valueOf(layer.GetInodesUsed())
		stats.Rootfs = part(l.layers, timeOf(layer.GetTimestamp()), used, inodes)
	}
	if c.GetLogPath() != "" {
		if used, err := diskusage.Of(ctx, filepath.Dir(c.GetLogPath())); err == nil {
			stats.Logs = part(l.nodeFs, metav1.NewTime(l.cfg.Clock.Now()), count(used.Bytes), count(used.Inodes))
		}
	}
	return stats, cgroup
}

// part returns the statistics of a file system with the time and usage of a part of it.
func part(whole *statsv1alpha1.FsStats, at metav1.Time, bytes, inodes *uint64) *statsv1alpha1.FsStats {
	var fs statsv1alpha1.FsStats
	if whole != nil {
		fs = *whole
	}
	fs.Time, fs.UsedBytes, fs.InodesUsed = at, bytes, inodes
	return &fs
}

// ephemeral returns the usage of a pod on the node's own disk.
func (l *collector) ephemeral(stats *statsv1alpha1.PodStats, pod *v1.Pod) *statsv1alpha1.FsStats {
	usage := UsageOf(stats, pod)
	var sum diskusage.Usage
	for _, one := range []*diskusage.Usage{usage.Layers, usage.Logs, usage.Volumes} {
		if one != nil {
			sum = sum.Add(*one)
		}
	}
	return part(l.nodeFs, metav1.NewTime(l.cfg.Clock.Now()), count(sum.Bytes), count(sum.Inodes))
}

// cpu returns the CPU time of a cgroup, and its rate since the last Report.
func (l *collector) cpu(name string, usage podcgroups.Usage) *statsv1alpha1.CPUStats {
	total := uint64(max(usage.CPU, 0))
	stats := &statsv1alpha1.CPUStats{
		Time: metav1.NewTime(usage.At), UsageCoreNanoSeconds: &total, PSI: usage.Pressure.CPU,
	}
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
		Time:       metav1.NewTime(usage.At),
		UsageBytes: &usage.MemoryBytes, WorkingSetBytes: &usage.WorkingSetBytes, RSSBytes: &usage.RSSBytes,
		PageFaults: &usage.PageFaults, MajorPageFaults: &usage.MajorPageFaults, PSI: usage.Pressure.Memory,
	}
	if usage.MemoryLimitBytes > 0 {
		available := usage.MemoryLimitBytes - min(usage.WorkingSetBytes, usage.MemoryLimitBytes)
		stats.AvailableBytes = &available
	}
	return stats
}

// ioOf returns the pressure of disks; nil if it is not known.
func ioOf(usage podcgroups.Usage) *statsv1alpha1.IOStats {
	if usage.Pressure.IO == nil {
		return nil
	}
	return &statsv1alpha1.IOStats{Time: metav1.NewTime(usage.At), PSI: usage.Pressure.IO}
}

func swapOf(usage podcgroups.Usage) *statsv1alpha1.SwapStats {
	stats := &statsv1alpha1.SwapStats{Time: metav1.NewTime(usage.At), SwapUsageBytes: &usage.SwapBytes}
	if limit := usage.SwapLimitBytes; limit != nil {
		available := *limit - min(usage.SwapBytes, *limit)
		stats.SwapAvailableBytes = &available
	}
	return stats
}
