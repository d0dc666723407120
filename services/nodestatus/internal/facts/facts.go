// Package facts reads what this machine is and how it is doing: from /proc, /sys and the file systems, with no more
// right than to read them. It judges nothing; nodeobject makes the Node of it.
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
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Machine is what does not change while the machine runs, except that processors may be taken off or added.
type Machine struct {
	// CPUs is how many logical processors are online.
	CPUs int
	// MemoryBytes is the memory that the kernel manages, from MemTotal.
	MemoryBytes int64
	// SwapBytes is the swap space that there is.
	SwapBytes int64
	// HugePages has each size of huge pages that the kernel knows, even when none is set aside.
	HugePages []HugePages
	// MachineID, SystemUUID and BootID identify the installation, the hardware and this boot; each may be empty.
	MachineID, SystemUUID, BootID string
	// KernelVersion is the kernel's release.
	KernelVersion string
	// OSImage is the distribution's name for people.
	OSImage string
	// OperatingSystem and Architecture are Go's names: "linux", "amd64".
	OperatingSystem, Architecture string
	// CgroupVersion is 2 where the unified hierarchy is mounted, and 1 where each controller has its own.
	CgroupVersion int
	// UserNamespace is true where this process has user IDs of its own, as on a node without root.
	UserNamespace bool
}

// HugePages is how many huge pages of one size are set aside.
type HugePages struct {
	PageBytes int64
	Pages     int64
}

// Readings is how the machine is doing now.
type Readings struct {
	// MemoryAvailableBytes is what pods can still get: what is not in the working set of anything. It is 0 when it is not known.
	MemoryAvailableBytes int64
	// NodeFS is the file system of the pods' directories.
	NodeFS Filesystem
	// MaxPIDs is how many processes and threads the kernel allows, and RunningPIDs how many there are.
	MaxPIDs, RunningPIDs int64
	// IP is the address of the interface of the default route; nil when there is none.
	IP net.IP
}

// Filesystem is the fill of a file system.
type Filesystem struct {
	CapacityBytes, AvailableBytes int64
	// Inodes and InodesFree are 0 on a file system that does not count inodes.
	Inodes, InodesFree int64
}

// Files whose first that can be read has an id.
var (
	machineIDFiles = []string{"/etc/machine-id", "/var/lib/dbus/machine-id"}
	bootIDFiles    = []string{"/proc/sys/kernel/random/boot_id"}
)

const hugePagesDir = "/sys/kernel/mm/hugepages/"

// ReadMachine reads what does not change. It fails when the size of the machine cannot be told, for a Node without a
// capacity is of no use; an id that cannot be read stays empty.
func ReadMachine() (Machine, error) {
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
	// Only root may read the hardware's id on most machines, and virtual ones often have none.
	if uuid, err := sysinfo.GetSystemUUID(sys); err == nil {
		m.SystemUUID = strings.TrimSpace(uuid)
	}
	// A machine that does not say has none.
	if swap, err := machine.GetMachineSwapCapacity(); err == nil {
		m.SwapBytes = int64(swap) //nolint:gosec // as above
	}
	pages, err := sysinfo.GetHugePagesInfo(sys, hugePagesDir)
	if err != nil {
		return Machine{}, fmt.Errorf("reading the huge pages of the machine: %w", err)
	}
	for _, p := range pages {
		m.HugePages = append(m.HugePages, HugePages{PageBytes: int64(p.PageSize) << 10, Pages: int64(p.NumPages)}) //nolint:gosec // as above
	}
	return m, nil
}

// cpus counts the processors by the topology in /sys; a container runtime or a virtual machine may hide it, and then
// what this process may run on is the best that is known.
func cpus(sys sysfs.SysFs) int {
	_, n, err := machine.GetTopology(sys)
	if err != nil || n == 0 {
		return runtime.NumCPU()
	}
	return n
}

const cgroupDir = "/sys/fs/cgroup"

// cgroupVersion tells by the file system that is mounted there, as the kubelet does.
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
		return false // this kernel has no user namespaces
	}
	return !slices.Equal(strings.Fields(string(ids)), []string{"0", "0", fmt.Sprint(uint32(math.MaxUint32))})
}

func firstOf(files []string) string {
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil {
			return strings.TrimSpace(string(data))
		}
	}
	return ""
}

// ReadNow reads how the machine is doing. The directory is that of the pods; while it does not exist, the nearest one
// above it that does stands for it. What could be read is returned also beside an error, which names what could not.
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
	// A machine without a default route is no error: it may be cut off on purpose, and --node-ip names its address.
	if ip, err := utilnet.ChooseHostInterface(); err == nil {
		r.IP = ip
	}
	return r, errors.Join(errs...)
}
