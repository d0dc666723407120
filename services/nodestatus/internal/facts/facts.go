// Package facts reads the properties and the load of this machine from /proc, /sys and the file systems, with read
// access only. It does not interpret them; nodeobject derives the Node from them.
package facts

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/google/cadvisor/lib/machine"
	"github.com/google/cadvisor/lib/utils/sysfs"
	"github.com/google/cadvisor/lib/utils/sysinfo"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/machineuuid"
)

// Machine holds the facts that do not change while the machine runs, except for processors that are added or removed.
type Machine struct {
	// CPUs is the number of logical processors that are online.
	CPUs int
	// MemoryBytes is the memory managed by the kernel, MemTotal.
	MemoryBytes int64
	// SwapBytes is the size of the swap space.
	SwapBytes int64
	// HugePages lists each size of huge pages that the kernel supports, even if none is reserved.
	HugePages []HugePages
	// MachineID, SystemUUID and BootID identify the installation, the hardware and this boot; each may be empty.
	MachineID, SystemUUID, BootID string
	// KernelVersion is the kernel's release.
	KernelVersion string
	// OSImage is the readable name of the distribution.
	OSImage string
	// OperatingSystem and Architecture are Go's names: "linux", "amd64".
	OperatingSystem, Architecture string
	// CgroupVersion is 2 if the unified hierarchy is mounted, and 1 if each controller has its own.
	CgroupVersion int
	// UserNamespace is true if this process is in another user namespace, as on a rootless node.
	UserNamespace bool
}

// HugePages is the number of reserved huge pages of one size.
type HugePages struct {
	PageBytes int64
	Pages     int64
}

// Readings holds the present load of the machine.
type Readings struct {
	// MemoryAvailableBytes is the memory outside of all working sets. It is 0 if unknown.
	MemoryAvailableBytes int64
	// NodeFS is the file system of the pods' directories.
	NodeFS Filesystem
	// MaxPIDs is the kernel's limit of processes and threads, and RunningPIDs their number.
	MaxPIDs, RunningPIDs int64
	// IP is the address of the node if --node-ip names none, see package nodeip; nil when there is none.
	IP net.IP
}

// Filesystem is the usage of a file system.
type Filesystem struct {
	CapacityBytes, AvailableBytes int64
	// Inodes and InodesFree are 0 on a file system that does not count inodes.
	Inodes, InodesFree int64
}

// Files with an ID; the first readable one is used.
var (
	machineIDFiles = []string{"/etc/machine-id", "/var/lib/dbus/machine-id"}
	bootIDFiles    = []string{"/proc/sys/kernel/random/boot_id"}
)

const hugePagesDir = "/sys/kernel/mm/hugepages/"

// ReadMachine reads the facts that do not change. It fails if the size of the machine is unknown, because a Node needs
// a capacity; an ID that cannot be read stays empty. stateDir is the directory with the hardware's ID from
// `quartet prepare --unit`.
func ReadMachine(stateDir string) (Machine, error) {
	sys := sysfs.NewRealSysFs()
	memory, err := machine.GetMachineMemoryCapacity()
	if err != nil {
		return Machine{}, fmt.Errorf("reading how much memory the machine has: %w", err)
	}
	m := Machine{
		CPUs: cpus(sys), MemoryBytes: int64(memory), //nolint:gosec // a machine has less than 8 EiB
		MachineID: firstOf(machineIDFiles), BootID: firstOf(bootIDFiles),
		KernelVersion: machine.KernelVersion(), OSImage: machine.ContainerOsVersion(),
		OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH, CgroupVersion: cgroupVersion(cgroupDir),
		UserNamespace: userNamespace("/proc/self/uid_map"),
	}
	// What this process may read itself is better than nothing.
	m.SystemUUID, _ = machineuuid.Of(stateDir)
	// A machine without this information has no swap.
	if swap, err := machine.GetMachineSwapCapacity(); err == nil {
		m.SwapBytes = int64(swap) //nolint:gosec // as above
	}
	pages, err := sysinfo.GetHugePagesInfo(sys, hugePagesDir)
	if err != nil {
		return Machine{}, fmt.Errorf("reading the huge pages of the machine: %w", err)
	}
	for _, p := range pages {
		size, count := int64(p.PageSize)<<10, int64(p.NumPages) //nolint:gosec // less than 8 EiB
		m.HugePages = append(m.HugePages, HugePages{PageBytes: size, Pages: count})
	}
	return m, nil
}

// cpus counts the processors by the topology in /sys. A container runtime or a virtual machine may hide it; then the
// processors that this process may use are counted.
func cpus(sys sysfs.SysFs) int {
	_, n, err := machine.GetTopology(sys)
	if err != nil || n == 0 {
		return runtime.NumCPU()
	}
	return n
}

const cgroupDir = "/sys/fs/cgroup"

// cgroupVersion detects the version by the mounted file system, as the kubelet does.
func cgroupVersion(dir string) int {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return 2
	}
	return 1
}

// userNamespace tells by the map of user IDs, which procfs does not read: without a namespace of its own a process has
// each ID of the machine as it is.
func userNamespace(file string) bool {
	ids, err := os.ReadFile(file)
	if err != nil {
		return false // the kernel has no user namespaces
	}
	return !slices.Equal(strings.Fields(string(ids)), []string{"0", "0", fmt.Sprint(uint32(math.MaxUint32))})
}

// MachineID identifies the installation of this machine; empty if it has no ID.
func MachineID() string { return firstOf(machineIDFiles) }

func firstOf(files []string) string {
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil {
			return strings.TrimSpace(string(data))
		}
	}
	return ""
}

// ReadNow reads the present load of the machine. rootDir is the directory of the pods; while it does not exist, its
// nearest existing ancestor is used. It returns successful readings even with an error, which names the failed ones.
func ReadNow(rootDir, stateDir string) (Readings, error) {
	var (
		r    Readings
		errs []error
		err  error
	)
	if r.MemoryAvailableBytes, err = memoryAvailable("/proc"); err != nil {
		errs = append(errs, err)
	}
	if r.NodeFS, err = filesystem(rootDir); err != nil {
		errs = append(errs, err)
	}
	if r.MaxPIDs, r.RunningPIDs, err = processes("/proc", stateDir); err != nil {
		errs = append(errs, err)
	}
	return r, errors.Join(errs...)
}
