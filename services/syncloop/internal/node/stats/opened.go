package stats

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// maxDescriptors is the largest number of processes, and of open files, of a cgroup that are counted. Counting as many
// takes less than 100 ms.
const maxDescriptors = 1 << 14

// Opened tells what processes have open. Values that are not known are nil.
type Opened struct {
	// Descriptors is the number of file descriptors, and Sockets the number of those of sockets. They are nil if a process
	// is of another PID namespace, or there are more than maxDescriptors.
	Descriptors, Sockets *uint64
	// Limit is the soft limit of file descriptors of the first process; the largest number if it is not limited.
	Limit *uint64
}

// openedBy reads what the processes of a cgroup have open. A process that has ended has nothing open. Descriptors are
// unknown if there are more of them, or of processes, than most.
func openedBy(proc, cgroup string, pids []int, most int) (opened Opened) {
	dir, err := procfs.NewFS(proc)
	if err != nil {
		return Opened{}
	}
	first := 0 // no process has this number
	switch {
	case cgroup == wholeMachine && !slices.Contains(pids, 0):
		first = 1
	case len(pids) > 0:
		first = pids[0]
	}
	if process, err := dir.Proc(first); err == nil {
		if limits, err := process.Limits(); err == nil {
			opened.Limit = &limits.OpenFiles
		}
	}
	if pids == nil || len(pids) > most || slices.Contains(pids, 0) {
		return opened
	}
	var descriptors int
	var sockets uint64
	for _, pid := range pids {
		process, err := dir.Proc(pid)
		if err != nil {
			continue
		}
		open, err := process.FileDescriptorsLen()
		if err != nil {
			continue
		}
		if descriptors += open; descriptors > most {
			return opened
		}
		targets, err := process.FileDescriptorTargets()
		if err != nil {
			continue
		}
		for _, target := range targets {
			if strings.HasPrefix(target, "socket:") {
				sockets++
			}
		}
	}
	counted := uint64(max(descriptors, 0))
	opened.Descriptors, opened.Sockets = &counted, &sockets
	return opened
}

// mountedDisks reads the counters of the disks with mounted file systems; nil if they cannot be read.
func mountedDisks(proc, sys string) (mounted []blockdevice.Diskstats) {
	dir, err := blockdevice.NewFS(proc, sys)
	if err != nil {
		return nil
	}
	disks, err := dir.ProcDiskstats()
	if err != nil {
		return nil
	}
	table, err := os.Open(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil
	}
	defer func() { _ = table.Close() }() // it was only read
	mounts, err := mountinfo.GetMountsFromReader(table, nil)
	if err != nil {
		return nil
	}
	for _, disk := range disks {
		if slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool {
			return m.Major == int(disk.MajorNumber) && m.Minor == int(disk.MinorNumber)
		}) {
			mounted = append(mounted, disk)
		}
	}
	return mounted
}

// sectorBytes is the size of a sector in the kernel's counters, whatever the disk has.
const sectorBytes = 512

// transfersOf returns what the machine read from disks and wrote to them, for kernels that do not count it for the root
// cgroup.
func transfersOf(mounted []blockdevice.Diskstats) []podcgroups.DiskIO {
	var all []podcgroups.DiskIO
	for i := range mounted {
		disk := &mounted[i]
		all = append(all, podcgroups.DiskIO{
			Device: "/dev/" + disk.DeviceName,
			Major:  strconv.FormatUint(uint64(disk.MajorNumber), 10), Minor: strconv.FormatUint(uint64(disk.MinorNumber), 10),
			Bytes:      map[string]uint64{"Read": disk.ReadSectors * sectorBytes, "Write": disk.WriteSectors * sectorBytes},
			Operations: map[string]uint64{"Read": disk.ReadIOs, "Write": disk.WriteIOs},
		})
	}
	return all
}
