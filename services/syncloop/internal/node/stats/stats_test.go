package stats_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	podCgroup       = "/kubepods/besteffort/podu1"
	containerCgroup = podCgroup + "/c1"
)

// cgroups is a fake Cgroups.
type cgroups struct {
	mu   sync.Mutex
	used map[string]podcgroups.Usage
	// unlisted is the error of every listing.
	unlisted error
}

func (c *cgroups) Usage(name string) (podcgroups.Usage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	usage, ok := c.used[name]
	if !ok {
		return usage, fs.ErrNotExist
	}
	usage.At = time.Now()
	return usage, nil
}

func (c *cgroups) Below(name string) (names []string, err error) {
	for other := range c.used {
		if filepath.Dir(other) == name {
			names = append(names, filepath.Base(other))
		}
	}
	return names, c.unlisted
}

func (c *cgroups) set(name string, usage podcgroups.Usage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used[name] = usage
}

// runtime is a fake runtime.
type runtime struct {
	internalapi.RuntimeService
	internalapi.ImageManagerService
	hangs, onlyContainers bool
	// dir is the directory of images; layers is that of the layers of containers, empty if it is not reported.
	dir, layers string
	calls       atomic.Int32
}

func (r *runtime) ListPodSandboxStats(
	ctx context.Context, _ *runtimeapi.PodSandboxStatsFilter,
) ([]*runtimeapi.PodSandboxStats, error) {
	r.calls.Add(1)
	if r.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if r.onlyContainers {
		return nil, errors.New("not implemented")
	}
	n := func(n uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: n} }
	return []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{Id: "s1"},
		Linux: &runtimeapi.LinuxPodSandboxStats{
			Cpu:     &runtimeapi.CpuUsage{UsageCoreNanoSeconds: n(1)},
			Memory:  &runtimeapi.MemoryUsage{WorkingSetBytes: n(2)},
			Process: &runtimeapi.ProcessUsage{ProcessCount: n(3)},
			Network: &runtimeapi.NetworkUsage{
				DefaultInterface: &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: n(77)},
			},
			Containers: r.containers(),
		},
	}}, nil
}

func (r *runtime) ListContainerStats(
	context.Context, *runtimeapi.ContainerStatsFilter,
) ([]*runtimeapi.ContainerStats, error) {
	return r.containers(), nil
}

func (*runtime) containers() []*runtimeapi.ContainerStats {
	return []*runtimeapi.ContainerStats{{
		Attributes: &runtimeapi.ContainerAttributes{Id: "c1"},
		Cpu:        &runtimeapi.CpuUsage{UsageNanoCores: &runtimeapi.UInt64Value{Value: 9}},
		WritableLayer: &runtimeapi.FilesystemUsage{
			UsedBytes: &runtimeapi.UInt64Value{Value: 4096}, InodesUsed: &runtimeapi.UInt64Value{Value: 3},
		},
	}}
}

func (r *runtime) Close(context.Context) error { return nil }

func (r *runtime) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	usage := func(dir string) []*runtimeapi.FilesystemUsage {
		return []*runtimeapi.FilesystemUsage{{
			FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir}, UsedBytes: &runtimeapi.UInt64Value{Value: 5},
		}}
	}
	info := &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage(r.dir)}
	if r.layers != "" {
		info.ContainerFilesystems = usage(r.layers)
	}
	return info, nil
}

// rig is a Stats of a node with one pod. The pod has one container, one volume on disk and one in memory.
type rig struct {
	*stats.Stats
	cgroups *cgroups
	runtime *runtime
	pod     *v1.Pod
	known   bool
}

func newRig(t *testing.T, change func(*rig, *stats.Config)) *rig {
	t.Helper()
	dir := t.TempDir()
	for path, size := range map[string]int{"logs/0.log": 8 << 10, "data/file": 64 << 10, "memory/file": 16 << 10} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(strings.Repeat("x", size)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1"}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "main"}},
		Volumes: []v1.Volume{
			{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{Name: "memory", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
			{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}},
		},
	}}
	r := &rig{known: true, pod: pod, runtime: &runtime{dir: dir}, cgroups: &cgroups{used: map[string]podcgroups.Usage{
		"/":         {CPU: time.Hour, MemoryBytes: 900, WorkingSetBytes: 600},
		"/kubepods": {MemoryBytes: 500, WorkingSetBytes: 400},
		podCgroup: {
			CPU: time.Minute, MemoryBytes: 300, WorkingSetBytes: 200, RSSBytes: 100, MemoryLimitBytes: 1000, Processes: 4,
		},
		containerCgroup: {CPU: time.Second, MemoryBytes: 30, WorkingSetBytes: 20},
	}}}
	names := podcgroups.NewNames("cgroupfs", "/")
	cfg := stats.Config{
		NodeName: "node-1",
		Observed: func() ([]*lifecyclev1.PodStatus, bool) { return []*lifecyclev1.PodStatus{seen(dir)}, r.known },
		Pod:      func(types.UID) *v1.Pod { return pod },
		Cgroups:  r.cgroups, Names: &names, RootDir: dir,
		Runtime:    func(context.Context) (internalapi.RuntimeService, error) { return r.runtime, nil },
		Images:     func(context.Context) (internalapi.ImageManagerService, error) { return r.runtime, nil },
		VolumePath: func(_ *v1.Pod, v *v1.Volume) string { return filepath.Join(dir, v.Name) }, VolumePeriod: time.Minute,
		Machine: func() stats.Machine { return stats.Machine{MemoryBytes: 1000} },
		Clock:   clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(r, &cfg)
	}
	r.Stats = stats.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	synctest.Wait() // the volumes have been measured once
	return r
}

func seen(dir string) *lifecyclev1.PodStatus {
	return &lifecyclev1.PodStatus{
		Uid: "u1", Name: "web", Namespace: "shop",
		Sandboxes: []*lifecyclev1.Sandbox{
			{Id: "s1", State: lifecyclev1.SandboxState_SANDBOX_STATE_READY, CreatedAt: timestamppb.Now()},
		},
		Containers: []*lifecyclev1.Container{
			{
				Id: "c1", Name: "main", State: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
				LogPath: filepath.Join(dir, "logs/0.log"),
			},
			{Id: "c0", Name: "main", State: lifecyclev1.ContainerState_CONTAINER_STATE_EXITED},
		},
	}
}

func (r *rig) summary(t *testing.T) *statsv1alpha1.Summary {
	t.Helper()
	summary, err := r.Summary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return summary
}

func TestEachPartIsReadWhereItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		summary := r.summary(t)
		node := summary.Node
		if *node.Memory.WorkingSetBytes != 600 || *node.Memory.AvailableBytes != 400 ||
			*node.CPU.UsageCoreNanoSeconds != uint64(time.Hour) || node.Fs == nil || *node.Runtime.ImageFs.UsedBytes != 5 ||
			node.SystemContainers[0].Name != "pods" || *node.SystemContainers[0].Memory.WorkingSetBytes != 400 {
			t.Errorf("the node: %+v", node)
		}
		pod := summary.Pods[0]
		if *pod.Memory.WorkingSetBytes != 200 || *pod.Memory.AvailableBytes != 800 || *pod.ProcessStats.ProcessCount != 4 ||
			*pod.Network.RxBytes != 77 || pod.Network.Name != "eth0" {
			t.Errorf("the pod: %+v", pod)
		}
		if len(pod.Containers) != 1 {
			t.Fatalf("%d containers, want the running one", len(pod.Containers))
		}
		c := pod.Containers[0]
		if *c.Memory.WorkingSetBytes != 20 || *c.CPU.UsageNanoCores != 9 || *c.Rootfs.UsedBytes != 4096 ||
			*c.Logs.UsedBytes < 8<<10 || *c.Logs.InodesUsed != 2 {
			t.Errorf("the container: %+v", c)
		}
		if len(pod.VolumeStats) != 2 || *pod.VolumeStats[0].UsedBytes < 64<<10 || *pod.VolumeStats[0].CapacityBytes == 0 {
			t.Errorf("the volumes: %+v", pod.VolumeStats)
		}
		usage := stats.UsageOf(&pod, r.pod)
		if *usage.MemoryBytes != 200 || *usage.Processes != 4 || usage.Layers.Inodes != 3 ||
			usage.Volumes.Bytes != int64(*pod.VolumeStats[0].UsedBytes) {
			t.Errorf("the usage of the pod for evictions: %+v, want *usage.MemoryBytes 200, *usage.Processes 4, Layers.Inodes 3 and Volumes.Bytes %v",
				usage, int64(*pod.VolumeStats[0].UsedBytes))
		}
		used, want := *pod.EphemeralStorage.UsedBytes, usage.Layers.Bytes+usage.Logs.Bytes+usage.Volumes.Bytes
		if int64(used) != want {
			t.Errorf("the pod uses %d bytes of the disk, want %d", used, want)
		}
	})
}

// TestACgroupThatCannotBeListedLeavesThePodItsUsage, and its containers have what the runtime measures.
func TestACgroupThatCannotBeListedLeavesThePodItsUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig, _ *stats.Config) { r.cgroups.unlisted = fs.ErrPermission })
		pod := r.summary(t).Pods[0]
		if *pod.Memory.WorkingSetBytes != 200 || *pod.ProcessStats.ProcessCount != 4 {
			t.Errorf("the pod: %+v, want its cgroup's 200 bytes and 4 processes", pod)
		}
		if len(pod.Containers) != 1 || *pod.Containers[0].CPU.UsageNanoCores != 9 ||
			*pod.Containers[0].Rootfs.UsedBytes != 4096 {
			t.Errorf("the containers: %+v, want the runtime's figures", pod.Containers)
		}
	})
}

func TestAReportHasCgroupsAndRuntimeIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		report, err := r.Report(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		place := report.Places["u1"]
		c := place.Containers[report.Pods[0].Containers[0].Name]
		if report.PodsCgroup != "/kubepods" || place.Cgroup != podCgroup || place.Sandbox == "" || len(place.Containers) != 1 ||
			c.ID == "" || c.Cgroup != podCgroup+"/"+c.ID {
			t.Errorf("got %+v in %s", place, report.PodsCgroup)
		}
	})
}

func TestTheRateIsOfTheTimeBetweenTwoReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		if first := r.summary(t); first.Pods[0].CPU.UsageNanoCores != nil {
			t.Errorf("a rate of one reading: %d", *first.Pods[0].CPU.UsageNanoCores)
		}
		r.cgroups.set(podCgroup, podcgroups.Usage{CPU: time.Minute + 5*time.Second})
		<-time.After(10 * time.Second)
		if rate := *r.summary(t).Pods[0].CPU.UsageNanoCores; rate != 5e8 {
			t.Errorf("5 s of 10 s are %d, want 5e8", rate)
		}
	})
}

func TestStatisticsAreCachedForFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		first := r.summary(t)
		<-time.After(4 * time.Second)
		if again := r.summary(t); again != first || r.runtime.calls.Load() != 1 {
			t.Errorf("the report was read again, and the runtime was called %d times", r.runtime.calls.Load())
		}
		<-time.After(2 * time.Second)
		if again := r.summary(t); again == first {
			t.Error("the report is older than 5 s and was not read again")
		}
	})
}

func TestARuntimeThatHangsLeavesOutOnlyItsStatistics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig, _ *stats.Config) { r.runtime.hangs = true })
		begun := time.Now()
		pod := r.summary(t).Pods[0]
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("it took %s", took)
		}
		if *pod.Memory.WorkingSetBytes != 200 || *pod.Containers[0].Memory.WorkingSetBytes != 20 ||
			pod.Network != nil || pod.Containers[0].Rootfs != nil {
			t.Errorf("the pod: %+v", pod)
		}
		<-time.After(time.Minute)
		r.summary(t)
		if r.runtime.calls.Load() != 1 {
			t.Errorf("%d calls hang, want 1", r.runtime.calls.Load())
		}
	})
}

func TestWithoutCgroupsTheRuntimesStatisticsAreUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(_ *rig, cfg *stats.Config) { cfg.Names = nil })
		pod := r.summary(t).Pods[0]
		if *pod.CPU.UsageCoreNanoSeconds != 1 || *pod.Memory.WorkingSetBytes != 2 ||
			*pod.ProcessStats.ProcessCount != 3 || *pod.Containers[0].CPU.UsageNanoCores != 9 {
			t.Errorf("the pod: %+v, want *pod.CPU.UsageCoreNanoSeconds 1, *pod.Memory.WorkingSetBytes 2, *pod.ProcessStats.ProcessCount 3 and *pod.Containers[0].CPU.UsageNanoCores 9",
				pod)
		}
	})
}

func TestARuntimeThatKnowsOnlyContainersIsAskedForThose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig, _ *stats.Config) { r.runtime.onlyContainers = true })
		if pod := r.summary(t).Pods[0]; *pod.Containers[0].Rootfs.UsedBytes != 4096 {
			t.Errorf("the pod: %+v, want *pod.Containers[0].Rootfs.UsedBytes 4096", pod)
		}
	})
}

func TestBeforeThePodsAreKnownItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig, _ *stats.Config) { r.known = false })
		if _, err := r.Summary(t.Context()); err == nil {
			t.Error("a summary of no pods")
		}
		r.known = true
		<-time.After(time.Millisecond)
		if pods := r.summary(t).Pods; len(pods) != 1 {
			t.Errorf("%d pods a moment later, want 1", len(pods))
		}
	})
}

func TestThisMachineIsRead(t *testing.T) {
	m := stats.ReadMachine(t.TempDir())
	if m.MemoryBytes == 0 || m.Processes == nil || *m.Processes < 1 || m.MaxProcesses == nil ||
		*m.MaxProcesses < *m.Processes || m.BootedAt.After(time.Now()) {
		t.Errorf("%+v", m)
	}
}
