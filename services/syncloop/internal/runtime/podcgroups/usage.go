package podcgroups

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/cgroups/fscommon"
	"golang.org/x/sys/unix"
)

// Usage is the resource usage of the processes of a cgroup, including the cgroups below it.
type Usage struct {
	// At is the time of the reading.
	At time.Time
	// CPU is the cpu time since the creation of the cgroup.
	CPU time.Duration
	// MemoryBytes is the total memory, WorkingSetBytes the memory without the inactive file cache, RSSBytes the anonymous
	// memory.
	MemoryBytes, WorkingSetBytes, RSSBytes uint64
	// MemoryLimitBytes is the memory limit; 0 for no limit.
	MemoryLimitBytes uint64
	// SwapBytes is the swapped memory; 0 if the kernel does not count it.
	SwapBytes uint64
	// SwapLimitBytes is the limit of the swapped memory with cgroup v2; nil for no limit.
	SwapLimitBytes *uint64
	// PageFaults and MajorPageFaults count since the creation of the cgroup.
	PageFaults, MajorPageFaults uint64
	// Processes is the number of processes and threads; 0 for the cgroup of the whole machine, which does not count them.
	Processes uint64
	// Pressure is known with cgroup v2 only.
	Pressure Pressure
}

// Usage reads the usage of a cgroup from some small kernel files. It fails with fs.ErrNotExist if the cgroup does not
// exist, and with an error that names the file if one cannot be read.
func (m *Machine) Usage(name string) (Usage, error) {
	usage, err := readCgroup(m, name, usageOfV1, usageOfV2)
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of the cgroup %s: %w", name, err)
	}
	usage.At = m.clock.Now()
	return usage, nil
}

// readCgroup reads a cgroup with the function for the machine's version of cgroups. The function for version 1 gets the
// directory of each controller by its name.
func readCgroup[T any](
	m *Machine,
	name string,
	v1 func(dirs map[string]string) (T, error),
	v2 func(dir string) (T, error),
) (T, error) {
	dirs, err := m.dirs(name)
	if err != nil {
		return *new(T), err
	}
	if dir, ok := dirs[unified]; ok && len(dirs) == 1 {
		return v2(dir)
	}
	return v1(dirs)
}

// Below returns the names of the cgroups directly below one, without its path; none if it does not exist.
func (m *Machine) Below(name string) ([]string, error) {
	dirs, err := m.dirs(name)
	if err != nil {
		return nil, err
	}
	dir, ok := dirs["memory"]
	if !ok {
		dir = dirs[unified]
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// usageOfV1 reads a cgroup of version 1 from the directories of its controllers. The values of missing controllers are
// zero.
func usageOfV1(dirs map[string]string) (Usage, error) {
	var usage Usage
	if dir, ok := dirs["cpuacct"]; ok {
		cpu, err := number(dir, "cpuacct.usage")
		if err != nil {
			return Usage{}, err
		}
		usage.CPU = time.Duration(min(cpu, math.MaxInt64))
	}
	if dir, ok := dirs["memory"]; ok {
		stat, err := values(dir, "memory.stat")
		if err != nil {
			return Usage{}, err
		}
		if usage.MemoryBytes, err = number(dir, "memory.usage_in_bytes"); err != nil {
			return Usage{}, err
		}
		usage.RSSBytes, usage.SwapBytes = stat["total_rss"], stat["total_swap"]
		usage.PageFaults, usage.MajorPageFaults = stat["total_pgfault"], stat["total_pgmajfault"]
		usage.WorkingSetBytes = less(usage.MemoryBytes, stat["total_inactive_file"])
		if limit, err := number(dir, "memory.limit_in_bytes"); err == nil && limit < unlimitedV1 {
			usage.MemoryLimitBytes = limit
		}
	}
	if dir, ok := dirs["pids"]; ok {
		var err error
		if usage.Processes, err = optional(dir, "pids.current"); err != nil {
			return Usage{}, err
		}
	}
	return usage, nil
}

// unlimitedV1 is less than version 1's value for no limit, the largest number of whole pages, and larger than any
// memory.
const unlimitedV1 = math.MaxInt64 / 2

// usageOfV2 reads a cgroup of version 2. The cgroup of the whole machine has no memory.current; its usage is the sum of
// its statistics, which is what version 1 reports.
func usageOfV2(dir string) (Usage, error) {
	var usage Usage
	cpu, err := values(dir, "cpu.stat")
	if err != nil {
		return Usage{}, err
	}
	usage.CPU = time.Duration(min(cpu["usage_usec"], math.MaxInt64/1000)) * time.Microsecond
	if usage.Pressure, err = pressureOf(dir); err != nil {
		return Usage{}, err
	}
	stat, err := values(dir, "memory.stat")
	if errors.Is(err, fs.ErrNotExist) {
		return usage, nil // the controller is not enabled for this cgroup
	}
	if err != nil {
		return Usage{}, err
	}
	usage.RSSBytes, usage.PageFaults, usage.MajorPageFaults = stat["anon"], stat["pgfault"], stat["pgmajfault"]
	usage.MemoryBytes, err = number(dir, "memory.current")
	if errors.Is(err, fs.ErrNotExist) {
		usage.MemoryBytes, err = stat["anon"]+stat["file"], nil
	}
	if err != nil {
		return Usage{}, err
	}
	usage.WorkingSetBytes = less(usage.MemoryBytes, stat["inactive_file"])
	limit, err := optional(dir, "memory.max")
	if err != nil {
		return Usage{}, err
	}
	if limit < math.MaxUint64 { // "max"
		usage.MemoryLimitBytes = limit
	}
	if usage.SwapBytes, err = optional(dir, "memory.swap.current"); err != nil {
		return Usage{}, err
	}
	switch limit, err := number(dir, "memory.swap.max"); {
	case err == nil && limit < math.MaxUint64:
		usage.SwapLimitBytes = &limit
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return Usage{}, err
	}
	usage.Processes, err = optional(dir, "pids.current")
	return usage, err
}

// number reads a number from a kernel file; "max" is the largest number.
func number(dir, file string) (uint64, error) {
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	if errors.Is(err, unix.ENODEV) {
		return 0, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(data))
	if text == "max" {
		return math.MaxUint64, nil
	}
	n, err := fscommon.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// optional reads a number from a file; 0 if the file is missing.
func optional(dir, file string) (uint64, error) {
	n, err := number(dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return n, err
}

// values reads a file of names and numbers. If the cgroup is removed during the read, the error is that of a missing
// file.
func values(dir, file string) (_ map[string]uint64, err error) {
	path := filepath.Join(dir, file)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	all := map[string]uint64{}
	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		name, value, err := fscommon.ParseKeyValue(scanner.Text())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all[name] = value
	}
	if err := scanner.Err(); errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

func less(n, by uint64) uint64 {
	if by > n {
		return 0
	}
	return n - by
}
