package kubeletapi

import (
	"context"
	"errors"
	flags "flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs/blockdevice"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

var update = flags.Bool("update", false, "write testdata anew")

// report returns the usage of a node with one pod of one container and a second pod without a cgroup.
func report() *stats.Report {
	read := metav1.NewTime(time.Unix(1_700_000_100, 0))
	started := metav1.NewTime(time.Unix(1_700_000_000, 0))
	n := ptr.To[uint64]
	cpu := func(seconds uint64) *statsv1alpha1.CPUStats {
		return &statsv1alpha1.CPUStats{Time: read, UsageCoreNanoSeconds: n(seconds * uint64(time.Second))}
	}
	memory := func(bytes uint64) *statsv1alpha1.MemoryStats {
		return &statsv1alpha1.MemoryStats{
			Time: read, UsageBytes: n(bytes), WorkingSetBytes: n(bytes - 1), RSSBytes: n(bytes - 2), PageFaults: n(bytes + 1),
			MajorPageFaults: n(3),
		}
	}
	network := func(name string, bytes uint64) *statsv1alpha1.NetworkStats {
		one := statsv1alpha1.InterfaceStats{
			Name: name, RxBytes: n(bytes), RxErrors: n(0), TxBytes: n(bytes + 1), TxErrors: n(1),
		}
		return &statsv1alpha1.NetworkStats{Time: read, InterfaceStats: one, Interfaces: []statsv1alpha1.InterfaceStats{one}}
	}
	disk := func(used uint64) *statsv1alpha1.FsStats {
		return &statsv1alpha1.FsStats{
			Time: read, UsedBytes: n(used), CapacityBytes: n(1000), Inodes: n(50), InodesFree: n(20),
		}
	}
	psi := func(total uint64) *statsv1alpha1.PSIStats {
		return &statsv1alpha1.PSIStats{
			Full: statsv1alpha1.PSIData{Total: total}, Some: statsv1alpha1.PSIData{Total: 2 * total},
		}
	}
	pressed := cpu(60)
	pressed.PSI = psi(1_500_000)
	return &stats.Report{
		Summary: &statsv1alpha1.Summary{
			Node: statsv1alpha1.NodeStats{
				NodeName: "node-1", StartTime: started, CPU: cpu(4000), Memory: memory(4096), Network: network("eth0", 400), Fs: disk(700),
				SystemContainers: []statsv1alpha1.ContainerStats{
					{Name: statsv1alpha1.SystemContainerPods, CPU: cpu(90), Memory: memory(900)},
				},
			},
			Pods: []statsv1alpha1.PodStats{{
				PodRef: statsv1alpha1.PodReference{Name: "web", Namespace: "default", UID: "u1"}, StartTime: started,
				CPU: pressed, Memory: memory(600), IO: &statsv1alpha1.IOStats{Time: read, PSI: psi(3_000_000)},
				Network: network("eth0", 40), Swap: &statsv1alpha1.SwapStats{Time: read, SwapUsageBytes: n(5)},
				ProcessStats: &statsv1alpha1.ProcessStats{ProcessCount: n(7)},
				Containers: []statsv1alpha1.ContainerStats{{
					Name: "main", StartTime: started, CPU: cpu(50), Memory: memory(500), Rootfs: disk(70), Swap: &statsv1alpha1.SwapStats{Time: read, SwapUsageBytes: n(5)},
				}},
			}, {
				PodRef: statsv1alpha1.PodReference{Name: "bare", Namespace: "default", UID: "u2"}, StartTime: started,
				Containers: []statsv1alpha1.ContainerStats{{Name: "main", CPU: &statsv1alpha1.CPUStats{Time: read}}},
			}},
		},
		Machine:    stats.Machine{ID: "m1", SystemUUID: "s1", BootID: "b1", CPUs: 4, MemoryBytes: 8192, SwapBytes: 1024},
		PodsCgroup: "/kubepods",
		Places: map[types.UID]stats.Place{
			"u1": {Cgroup: "/kubepods/podu1", Sandbox: "s1", Containers: map[string]stats.ContainerPlace{
				"main": {Cgroup: "/kubepods/podu1/c1", ID: "c1", Image: "shop.example/web:1"},
			}},
			"u2": {Sandbox: "s2", Containers: map[string]stats.ContainerPlace{"main": {ID: "c2", Image: "shop.example/bare:1"}}},
		},
	}
}

// details returns the details of the cgroups in report: only the container has limits, processes and open files.
func details(_ context.Context, cgroup string, packets bool) stats.Details {
	n := ptr.To[uint64]
	d := stats.Details{At: time.Unix(1_700_000_090, 0)}
	if packets {
		d.Packets = []stats.Packets{{Interface: "lo", Received: 1000}, {Interface: "eth0", Received: 44, ReceivedDropped: 1, Sent: 45, SentDropped: 2}}
	}
	d.UserTime, d.SystemTime = n(2_500_000_000), n(500_000_000)
	d.CPUShares, d.CPUPeriod = n(2), n(100_000)
	d.CacheBytes, d.MappedBytes, d.PeakBytes = n(8192), n(4096), n(70_000)
	d.LimitHits, d.HighEvents, d.MaxEvents = n(1), n(2), n(3)
	d.MemoryLimit, d.SwapLimit, d.MemoryReserved = n(0), n(0), n(0)
	d.Threads, d.MaxThreads, d.Processes = n(7), n(0), []int{}
	d.Opened = stats.Opened{Descriptors: n(0), Sockets: n(0)}
	d.Disks = []podcgroups.DiskIO{{
		Device: "/dev/sda", Major: "8", Minor: "0",
		Bytes: map[string]uint64{"Read": 8192, "Write": 4096}, Operations: map[string]uint64{"Read": 2, "Write": 1},
	}}
	if cgroup == "/" {
		d.Opened.Limit = n(math.MaxUint64)
		d.Mounted = []blockdevice.Diskstats{{
			Info: blockdevice.Info{MajorNumber: 8, MinorNumber: 1, DeviceName: "sda1"},
			IOStats: blockdevice.IOStats{
				ReadMerges: 1, ReadSectors: 2, ReadTicks: 3500, WriteMerges: 4, WriteSectors: 5, WriteTicks: 6500, IOsInProgress: 7,
				IOsTotalTicks: 8500, WeightedIOTicks: 9500,
			},
		}}
		return d
	}
	d.OOMKills = n(1)
	if cgroup == "/kubepods/podu1/c1" {
		d.CFS, d.CPUQuota = &podcgroups.CFS{Periods: 10, Throttled: 4, Time: 1500 * time.Millisecond}, n(50_000)
		d.MemoryLimit, d.MaxThreads, d.Processes = n(80_000), n(100), []int{42, 43}
		d.Opened = stats.Opened{Descriptors: n(12), Sockets: n(5), Limit: n(1024)}
	}
	return d
}

// TestDashboardsFindWhatPodsUse compares the metrics with cAdvisor's names and labels in testdata/cadvisor.txt.
func TestDashboardsFindWhatPodsUse(t *testing.T) {
	r := newRig(t)
	r.cfg.Report = func(context.Context) (*stats.Report, error) { return report(), nil }
	r.cfg.Details = details
	answer := r.ask("GET", "/metrics/cadvisor")
	if answer.Code != 200 {
		t.Fatalf("answer.Code = %d %s, want 200", answer.Code, answer.Body)
	}
	golden := filepath.Join("testdata", "cadvisor.txt")
	if *update {
		if err := os.WriteFile(golden, answer.Body.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), answer.Body.String()); diff != "" {
		t.Errorf("(-want +got), go test -update writes it anew:\n%s", diff)
	}
}

func TestDashboardsFindThatNothingIsKnown(t *testing.T) {
	r := newRig(t)
	r.cfg.Report = func(context.Context) (*stats.Report, error) { return nil, errors.New("the pods are not known yet") }
	body := r.ask("GET", "/metrics/cadvisor").Body.String()
	if !strings.Contains(body, "container_scrape_error 1\n") || !strings.Contains(body, "machine_scrape_error 1\n") || strings.Contains(body, "container_cpu") {
		t.Errorf("body = %s, want text with %q, with %q and without %q",
			body, "container_scrape_error 1\n", "machine_scrape_error 1\n", "container_cpu")
	}
}
