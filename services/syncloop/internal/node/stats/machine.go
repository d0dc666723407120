package stats

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/pidlimit"
)

// Machine is the state of the machine besides its cgroups. A value that could not be read is zero or nil.
type Machine struct {
	// BootedAt is the time of the last boot.
	BootedAt time.Time
	// ID, SystemUUID and BootID identify the installation, the hardware and the boot.
	ID, SystemUUID, BootID string
	// CPUs is the number of CPUs.
	CPUs int
	// MemoryBytes is the size of the memory, and SwapBytes the size of the swap space.
	MemoryBytes, SwapBytes uint64
	// SwapFreeBytes is the free swap space; nil if there is no swap space.
	SwapFreeBytes *uint64
	// HugePageBytes is the memory that is reserved for huge pages of any size.
	HugePageBytes uint64
	// Interfaces are the network interfaces except lo, sorted by name.
	Interfaces []statsv1alpha1.InterfaceStats
	// MaxProcesses is the maximum number of processes and threads, and Processes their current number.
	MaxProcesses, Processes *int64
}

// defaultInterface is the interface whose counters represent the machine, if it exists. It is the kubelet's.
const defaultInterface = "eth0"

// ReadMachine reads the state of this machine from /proc and /sys. stateDir is where `quartet prepare` stored the
// maximum number of processes.
func ReadMachine(stateDir string) Machine {
	m := Machine{
		BootedAt: time.Now().Add(-boottime.Now()), CPUs: runtime.NumCPU(),
		ID: textIn("/etc/machine-id"), SystemUUID: textIn("/sys/class/dmi/id/product_uuid"),
		BootID: textIn("/proc/sys/kernel/random/boot_id"),
	}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return m
	}
	if memory, err := proc.Meminfo(); err == nil {
		if memory.MemTotalBytes != nil {
			m.MemoryBytes = *memory.MemTotalBytes
		}
		if memory.HugetlbBytes != nil {
			m.HugePageBytes = *memory.HugetlbBytes
		}
		if memory.SwapTotalBytes != nil && *memory.SwapTotalBytes > 0 {
			m.SwapFreeBytes, m.SwapBytes = memory.SwapFreeBytes, *memory.SwapTotalBytes
		}
	}
	if lines, err := proc.NetDev(); err == nil {
		for _, line := range lines {
			if line.Name != "lo" {
				m.Interfaces = append(m.Interfaces, statsv1alpha1.InterfaceStats{
					Name: line.Name, RxBytes: &line.RxBytes, RxErrors: &line.RxErrors,
					TxBytes: &line.TxBytes, TxErrors: &line.TxErrors,
				})
			}
		}
		slices.SortFunc(m.Interfaces, func(a, b statsv1alpha1.InterfaceStats) int { return strings.Compare(a.Name, b.Name) })
	}
	if running, err := pidlimit.Running("/proc"); err == nil {
		m.Processes = &running
	}
	if limit, err := pidlimit.Read("/proc", stateDir); err == nil {
		m.MaxProcesses = &limit
	}
	return m
}

// textIn reads a short file. It returns an empty string if the file cannot be read.
func textIn(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// networkOf returns the network statistics of the machine.
func networkOf(m Machine, now time.Time) *statsv1alpha1.NetworkStats {
	if len(m.Interfaces) == 0 {
		return nil
	}
	stats := &statsv1alpha1.NetworkStats{Time: metav1.NewTime(now), Interfaces: m.Interfaces}
	for _, i := range m.Interfaces {
		if i.Name == defaultInterface {
			stats.InterfaceStats = i
		}
	}
	return stats
}

// filesystem reads the usage of the file system of a directory. AvailableBytes is what users other than root may still
// use.
func filesystem(dir string, now time.Time) (statsv1alpha1.FsStats, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return statsv1alpha1.FsStats{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	size := uint64(stat.Bsize) //nolint:gosec // it is not negative
	pointer := func(n uint64) *uint64 { return &n }
	return statsv1alpha1.FsStats{
		Time:          metav1.NewTime(now),
		CapacityBytes: pointer(stat.Blocks * size), AvailableBytes: pointer(stat.Bavail * size),
		UsedBytes: pointer((stat.Blocks - stat.Bfree) * size),
		Inodes:    pointer(stat.Files), InodesFree: pointer(stat.Ffree), InodesUsed: pointer(stat.Files - stat.Ffree),
	}, nil
}
