package facts

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/pidlimit"
)

// memoryAvailable returns all memory minus the total working set: anonymous memory and file pages, except inactive file
// pages. The kubelet computes the same value from the root cgroup, versions 1 and 2, which has the same counters of the
// kernel; a process in a container may not see that cgroup. The kernel's own memory counts as available, as in the
// kubelet; MemAvailable excludes it, and includes more of the cache. proc is /proc.
func memoryAvailable(proc string) (int64, error) {
	dir, err := procfs.NewFS(proc)
	if err != nil {
		return 0, fmt.Errorf("reading how much memory is free: %w", err)
	}
	memory, err := dir.Meminfo()
	if err != nil {
		return 0, fmt.Errorf("reading how much memory is free: %w", err)
	}
	for field, value := range map[string]*uint64{
		"MemTotal": memory.MemTotalBytes, "Inactive(file)": memory.InactiveFileBytes, "AnonPages": memory.AnonPagesBytes,
		"Cached": memory.CachedBytes, "Buffers": memory.BuffersBytes, "SwapCached": memory.SwapCachedBytes,
	} {
		if value == nil {
			return 0, fmt.Errorf("reading how much memory is free: meminfo has no field %s", field)
		}
	}
	total := int64(*memory.MemTotalBytes) //nolint:gosec // a machine has less than 8 EiB
	used := *memory.AnonPagesBytes + *memory.CachedBytes + *memory.BuffersBytes + *memory.SwapCachedBytes
	available := total + int64(*memory.InactiveFileBytes) - int64(used) //nolint:gosec // as above
	return min(max(available, 1), total), nil                           // 0 would mean unknown
}

// filesystem returns the usage of the file system of a directory, which need not exist yet.
func filesystem(dir string) (Filesystem, error) {
	for at := dir; ; at = filepath.Dir(at) {
		var stat unix.Statfs_t
		err := unix.Statfs(at, &stat)
		switch {
		case err == nil:
			size := int64(stat.Bsize)
			return Filesystem{
				CapacityBytes:  int64(stat.Blocks) * size, //nolint:gosec // less than 8 EiB
				AvailableBytes: int64(stat.Bavail) * size, //nolint:gosec // as above
				Inodes:         int64(stat.Files),         //nolint:gosec // as above
				InodesFree:     int64(stat.Ffree),         //nolint:gosec // as above
			}, nil
		case errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at):
		default:
			return Filesystem{}, fmt.Errorf("reading the free space of %s: %w", at, err)
		}
	}
}

// processes returns the kernel's limit of processes and threads, the lowest of two, and their number. stateDir is the
// directory with the machine's limit from `quartet prepare`.
func processes(proc, stateDir string) (limit, running int64, err error) {
	if limit, err = pidlimit.Read(proc, stateDir); err != nil {
		return 0, 0, err
	}
	running, err = pidlimit.Running(proc)
	return limit, running, err
}
