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

// fromRuntime is what the runtime says.
type fromRuntime struct {
	// sandboxes and containers are by their IDs.
	sandboxes  map[string]*runtimeapi.LinuxPodSandboxStats
	containers map[string]*runtimeapi.ContainerStats
	// images and layers are the file systems that it keeps both in; nil when it does not say.
	images, layers *runtimeapi.FilesystemUsage
}

// askRuntime asks for all pods at once. A runtime that knows nothing of pods is asked for containers.
func (s *Stats) askRuntime(ctx context.Context) (fromRuntime, error) {
	said := fromRuntime{sandboxes: map[string]*runtimeapi.LinuxPodSandboxStats{}, containers: map[string]*runtimeapi.ContainerStats{}}
	runtime, err := s.cfg.Runtime(ctx)
	if err != nil {
		return said, err
	}
	images, err := s.cfg.Images(ctx)
	if err != nil {
		return said, err
	}
	ctx = cri.Quiet(ctx)
	var errs []error
	if info, err := images.ImageFsInfo(ctx); err != nil {
		errs = append(errs, fmt.Errorf("ask the runtime for the file system of images: %w", err))
	} else {
		said.images, said.layers = firstOf(info.GetImageFilesystems()), firstOf(info.GetContainerFilesystems())
	}
	pods, err := runtime.ListPodSandboxStats(ctx, nil)
	if err == nil {
		for _, pod := range pods {
			said.sandboxes[pod.GetAttributes().GetId()] = pod.GetLinux()
			said.add(pod.GetLinux().GetContainers())
		}
		return said, errors.Join(errs...)
	}
	containers, err := runtime.ListContainerStats(ctx, nil)
	if err != nil {
		return said, errors.Join(append(errs, fmt.Errorf("ask the runtime what containers use: %w", err))...)
	}
	said.add(containers)
	return said, errors.Join(errs...)
}

func (f *fromRuntime) add(containers []*runtimeapi.ContainerStats) {
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

// patiently is what the runtime says, or has said not too long ago; nothing when it has said nothing.
func (s *Stats) patiently(ctx context.Context) fromRuntime {
	patience := s.cfg.Clock.NewTimer(runtimePatience)
	defer patience.Stop()
	said, err := s.runtime.get(ctx, 0, patience.C())
	if err == nil {
		return said
	}
	s.cfg.Logger.DebugContext(ctx, "the runtime does not say all of what pods use", telemetry.KeyError, err)
	if !errors.Is(err, errImpatient) {
		return said
	}
	said, _ = s.runtime.last(runtimeMaxAge)
	return said
}

// timeOf is a moment as the runtime says it, in nanoseconds.
func timeOf(nanoseconds int64) metav1.Time { return metav1.NewTime(time.Unix(0, nanoseconds)) }

// valueOf is a number of the runtime's; nil when it has none.
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
		Time: timeOf(cpu.GetTimestamp()), UsageNanoCores: valueOf(cpu.GetUsageNanoCores()), UsageCoreNanoSeconds: valueOf(cpu.GetUsageCoreNanoSeconds()),
	}
}

func memoryOfRuntime(m *runtimeapi.MemoryUsage) *statsv1alpha1.MemoryStats {
	if m == nil {
		return nil
	}
	return &statsv1alpha1.MemoryStats{
		Time: timeOf(m.GetTimestamp()), AvailableBytes: valueOf(m.GetAvailableBytes()), UsageBytes: valueOf(m.GetUsageBytes()),
		WorkingSetBytes: valueOf(m.GetWorkingSetBytes()), RSSBytes: valueOf(m.GetRssBytes()),
		PageFaults: valueOf(m.GetPageFaults()), MajorPageFaults: valueOf(m.GetMajorPageFaults()),
	}
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
