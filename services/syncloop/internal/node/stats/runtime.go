package stats

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// runtimeStats are the statistics of the runtime.
type runtimeStats struct {
	// sandboxes and containers are indexed by ID.
	sandboxes  map[string]*runtimeapi.LinuxPodSandboxStats
	containers map[string]*runtimeapi.ContainerStats
	// images and layers are the file systems of images and of containers' layers; nil if the runtime does not report them.
	images, layers *runtimeapi.FilesystemUsage
}

// askRuntime reads the statistics of all pods in one call. If that call fails, it reads those of all containers,
// because some runtimes do not support the first. If it returns an error, the statistics are incomplete.
func (s *Stats) askRuntime(ctx context.Context) (runtimeStats, error) {
	stats := runtimeStats{
		sandboxes: map[string]*runtimeapi.LinuxPodSandboxStats{}, containers: map[string]*runtimeapi.ContainerStats{},
	}
	runtime, err := s.cfg.Runtime(ctx)
	if err != nil {
		return stats, err
	}
	images, err := s.cfg.Images(ctx)
	if err != nil {
		return stats, err
	}
	ctx = cri.Quiet(ctx)
	var errs []error
	if info, err := images.ImageFsInfo(ctx); err != nil {
		errs = append(errs, fmt.Errorf("ask the runtime for the file system of images: %w", err))
	} else {
		stats.images, stats.layers = firstOf(info.GetImageFilesystems()), firstOf(info.GetContainerFilesystems())
	}
	pods, err := runtime.ListPodSandboxStats(ctx, nil)
	if err == nil {
		for _, pod := range pods {
			stats.sandboxes[pod.GetAttributes().GetId()] = pod.GetLinux()
			stats.add(pod.GetLinux().GetContainers())
		}
		return stats, errors.Join(errs...)
	}
	containers, err := runtime.ListContainerStats(ctx, nil)
	if err != nil {
		return stats, errors.Join(append(errs, fmt.Errorf("ask the runtime for the usage of containers: %w", err))...)
	}
	stats.add(containers)
	return stats, errors.Join(errs...)
}

func (f *runtimeStats) add(containers []*runtimeapi.ContainerStats) {
	for _, c := range containers {
		f.containers[c.GetAttributes().GetId()] = c
	}
}

func firstOf(all []*runtimeapi.FilesystemUsage) *runtimeapi.FilesystemUsage {
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// currentRuntime returns the statistics of the runtime. If the read takes too long, it returns those of the last one,
// up to runtimeMaxAge old, or none. If the read fails, it returns the part that was read.
func (s *Stats) currentRuntime(ctx context.Context) runtimeStats {
	timeout := s.cfg.Clock.NewTimer(runtimeTimeout)
	defer timeout.Stop()
	stats, err := s.runtime.get(ctx, 0, timeout.C())
	if err == nil {
		return stats
	}
	s.cfg.Logger.DebugContext(ctx, "the runtime's statistics of pods are incomplete", telemetry.KeyError, err)
	if !errors.Is(err, errTimeout) {
		return stats
	}
	stats, _ = s.runtime.last(runtimeMaxAge)
	return stats
}

// timeOf converts a time of the runtime, in nanoseconds.
func timeOf(nanoseconds int64) metav1.Time { return metav1.NewTime(time.Unix(0, nanoseconds)) }

// valueOf converts a number of the runtime; nil stays nil.
func valueOf(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.GetValue()
	return &n
}

func cpuOfRuntime(cpu *runtimeapi.CpuUsage) *statsv1alpha1.CPUStats {
	if cpu == nil {
		return nil
	}
	return &statsv1alpha1.CPUStats{
		Time: timeOf(cpu.GetTimestamp()), UsageNanoCores: valueOf(cpu.GetUsageNanoCores()),
		UsageCoreNanoSeconds: valueOf(cpu.GetUsageCoreNanoSeconds()), PSI: pressureOfRuntime(cpu.GetPsi()),
	}
}

func memoryOfRuntime(m *runtimeapi.MemoryUsage) *statsv1alpha1.MemoryStats {
	if m == nil {
		return nil
	}
	return &statsv1alpha1.MemoryStats{
		Time:           timeOf(m.GetTimestamp()),
		AvailableBytes: valueOf(m.GetAvailableBytes()), UsageBytes: valueOf(m.GetUsageBytes()),
		WorkingSetBytes: valueOf(m.GetWorkingSetBytes()), RSSBytes: valueOf(m.GetRssBytes()),
		PageFaults: valueOf(m.GetPageFaults()), MajorPageFaults: valueOf(m.GetMajorPageFaults()),
		PSI: pressureOfRuntime(m.GetPsi()),
	}
}

func ioOfRuntime(io *runtimeapi.IoUsage) *statsv1alpha1.IOStats {
	if io == nil {
		return nil
	}
	return &statsv1alpha1.IOStats{Time: timeOf(io.GetTimestamp()), PSI: pressureOfRuntime(io.GetPsi())}
}

func pressureOfRuntime(p *runtimeapi.PsiStats) *statsv1alpha1.PSIStats {
	if p == nil {
		return nil
	}
	one := func(d *runtimeapi.PsiData) statsv1alpha1.PSIData {
		return statsv1alpha1.PSIData{Total: d.GetTotal(), Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300()}
	}
	return &statsv1alpha1.PSIStats{Full: one(p.GetFull()), Some: one(p.GetSome())}
}

func networkOfRuntime(n *runtimeapi.NetworkUsage) *statsv1alpha1.NetworkStats {
	if n == nil {
		return nil
	}
	one := func(i *runtimeapi.NetworkInterfaceUsage) statsv1alpha1.InterfaceStats {
		return statsv1alpha1.InterfaceStats{
			Name: i.GetName(), RxBytes: valueOf(i.GetRxBytes()), RxErrors: valueOf(i.GetRxErrors()),
			TxBytes: valueOf(i.GetTxBytes()), TxErrors: valueOf(i.GetTxErrors()),
		}
	}
	stats := &statsv1alpha1.NetworkStats{Time: timeOf(n.GetTimestamp())}
	if n.GetDefaultInterface() != nil {
		stats.InterfaceStats = one(n.GetDefaultInterface())
		stats.Interfaces = append(stats.Interfaces, stats.InterfaceStats)
	}
	for _, i := range n.GetInterfaces() {
		if i.GetName() != stats.Name {
			stats.Interfaces = append(stats.Interfaces, one(i))
		}
	}
	return stats
}
