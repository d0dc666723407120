package facts

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/pidlimit"
)

// memoryAvailable is all memory less the working set of everything: what is of no file and what is, less the files' part that was not
// used lately. It is what a kubelet arrives at by the root cgroup, of version 1 and 2, which has the same counters of the kernel; a
// process in a container may not see that cgroup. The kernel's own memory counts as available, as there; its MemAvailable does not count
// it, and counts more of the cache.
func memoryAvailable(meminfo string) (int64, error) {
	data, err := os.ReadFile(meminfo)
	if err != nil {
		return 0, fmt.Errorf("reading how much memory is free: %w", err)
	}
	values, err := parseMeminfo(data, "MemTotal", "Inactive(file)", "AnonPages", "Cached", "Buffers", "SwapCached")
	if err != nil {
		return 0, fmt.Errorf("reading how much memory is free from %s: %w", meminfo, err)
	}
	available := values[0] + values[1]
	for _, used := range values[2:] {
		available -= used
	}
	return min(max(available, 1), values[0]), nil // 0 would be that nothing is known
}

// parseMeminfo returns the values of some fields of /proc/meminfo, in bytes.
func parseMeminfo(data []byte, fields ...string) ([]int64, error) {
	values := make([]int64, len(fields))
	found := 0
	scanner := bufio.NewScanner(bytes.NewReader(data))
	for scanner.Scan() {
		name, rest, ok := strings.Cut(scanner.Text(), ":")
		if !ok {
			continue
		}
		for i, field := range fields {
			if name != field {
				continue
			}
			number, unit, _ := strings.Cut(strings.TrimSpace(rest), " ")
			kib, err := strconv.ParseInt(number, 10, 54)
			if err != nil || kib < 0 || unit != "kB" {
				return nil, fmt.Errorf("%s is %q, want a number of kB", field, strings.TrimSpace(rest))
			}
			values[i] = kib << 10
			found++
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	if found != len(fields) {
		return nil, fmt.Errorf("found %d of the fields %s", found, strings.Join(fields, ", "))
	}
	return values, nil
}

// filesystem reads the fill of the file system that a directory is on, or will be on.
func filesystem(dir string) (Filesystem, error) {
	for at := dir; ; at = filepath.Dir(at) {
		var stat unix.Statfs_t
		err := unix.Statfs(at, &stat)
		switch {
		case err == nil:
			size := int64(stat.Bsize)
			return Filesystem{
				CapacityBytes: int64(stat.Blocks) * size, AvailableBytes: int64(stat.Bavail) * size, //nolint:gosec // less than 8 EiB
				Inodes: int64(stat.Files), InodesFree: int64(stat.Ffree), //nolint:gosec // as above
			}, nil
		case errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at):
		default:
			return Filesystem{}, fmt.Errorf("reading the free space of %s: %w", at, err)
		}
	}
}

// processes returns how many processes and threads the kernel allows, the least of its two limits, and how many there
// are. stateDir is where `quartet prepare` has left the machine's limit.
func processes(proc, stateDir string) (limit, running int64, err error) {
	if limit, err = pidlimit.Read(proc, stateDir); err != nil {
		return 0, 0, err
	}
	data, err := os.ReadFile(filepath.Join(proc, "loadavg"))
	if err != nil {
		return 0, 0, fmt.Errorf("reading how many processes run: %w", err)
	}
	running, err = parseLoadavg(string(data))
	return limit, running, err
}

// parseLoadavg returns how many processes and threads exist, from the fourth word, "RUNNABLE/ALL".
func parseLoadavg(text string) (int64, error) {
	words := strings.Fields(text)
	if len(words) >= 4 {
		if _, all, ok := strings.Cut(words[3], "/"); ok {
			if n, err := strconv.ParseInt(all, 10, 64); err == nil {
				return n, nil
			}
		}
	}
	return 0, fmt.Errorf("reading how many processes run: %q is not what loadavg has", strings.TrimSpace(text))
}
