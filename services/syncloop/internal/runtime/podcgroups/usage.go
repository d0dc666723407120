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

// Usage is what the processes of a cgroup use, those of the cgroups below it included.
type Usage struct {
	// At is when it was read.
	At time.Time
	// CPU is the processor time that they have had since the cgroup was made.
	CPU time.Duration
	// MemoryBytes is all memory, WorkingSetBytes that without the file cache that was not used lately, RSSBytes that which
	// is of no file.
	MemoryBytes, WorkingSetBytes, RSSBytes uint64
	// MemoryLimitBytes is how much there may be; 0 for no limit.
	MemoryLimitBytes uint64
	// SwapBytes is what of them is swapped out; 0 where the kernel does not count it.
	SwapBytes uint64
	// PageFaults and MajorPageFaults count since the cgroup was made.
	PageFaults, MajorPageFaults uint64
	// Processes is how many processes and threads there are; 0 for the cgroup of the whole machine, which does not count
	// them.
	Processes uint64
}

// Usage reads what a cgroup uses, from some small files of the kernel's. It fails with fs.ErrNotExist when there is no
// such cgroup, and with an error that names the file when one cannot be read.
func (m *Machine) Usage(name string) (Usage, error) {
	usage, err := readCgroup(m, name, usageOfV1, usageOfV2)
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of the cgroup %s: %w", name, err)
	}
	usage.At = m.clock.Now()
	return usage, nil
}

// readCgroup reads a cgroup by the function for the version of cgroups that the machine has. That of version 1 gets the
// directory of each controller, by its name.
func readCgroup[T any](m *Machine, name string, v1 func(dirs map[string]string) (T, error), v2 func(dir string) (T, error)) (T, error) {
	dirs, err := m.dirs(name)
	if err != nil {
		return *new(T), err
	}
	if dir, ok := dirs[unified]; ok && len(dirs) == 1 {
		return v2(dir)
	}
	return v1(dirs)
}

// Below lists the names of the cgroups directly below one, without the path to it; none when it is not there.
func (m *Machine) Below(name string) []string {
	dirs, err := m.dirs(name)
	if err != nil {
		return nil
	}
	dir, ok := dirs["memory"]
	if !ok {
		dir = dirs[unified]
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names
}

// usageOfV1 reads a cgroup of version 1, by the directories of its controllers. Of a controller that the machine does
// not have nothing is known.
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

// unlimitedV1 is less than what version 1 says for no limit, the largest number of whole pages, and more than any
// machine has.
const unlimitedV1 = math.MaxInt64 / 2

// usageOfV2 reads a cgroup of version 2. That of the whole machine has no memory.current: it uses what its statistics
// add up to, by which it is what version 1 says.
func usageOfV2(dir string) (Usage, error) {
	var usage Usage
	cpu, err := values(dir, "cpu.stat")
	if err != nil {
		return Usage{}, err
	}
	usage.CPU = time.Duration(min(cpu["usage_usec"], math.MaxInt64/1000)) * time.Microsecond
	stat, err := values(dir, "memory.stat")
	if errors.Is(err, fs.ErrNotExist) {
		return usage, nil // the controller is not on here
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
	usage.Processes, err = optional(dir, "pids.current")
	return usage, err
}

// number reads a number from a file of the kernel's; "max" is the largest there is.
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

// optional reads a number from a file that need not be there; 0 when it is not.
func optional(dir, file string) (uint64, error) {
	n, err := number(dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return n, err
}

// values reads a file of names and numbers. A cgroup that goes away meanwhile is one that is not there.
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
