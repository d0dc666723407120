package podcgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// Details holds the statistics of a cgroup that only dashboards need, in addition to Usage. Each has the meaning of
// cAdvisor's metric. A value is nil if its file could not be read, and 0 if the kernel has no such file.
type Details struct {
	// CFS holds the throttling by the cpu limit; nil without a limit.
	CFS *CFS
	// UserTime and SystemTime are the cpu time in nanoseconds.
	UserTime, SystemTime *uint64
	// CPUShares, CPUPeriod and CPUQuota are the cpu request and limit, the last two in microseconds. CPUQuota is nil
	// without a limit.
	CPUShares, CPUPeriod, CPUQuota *uint64
	// CacheBytes is the memory of cached files, MappedBytes that of mapped files, PeakBytes the largest usage.
	CacheBytes, MappedBytes, PeakBytes *uint64
	// LimitHits counts how often the limit was hit, with cgroup v1. HighEvents and MaxEvents count how often memory.high
	// and memory.max were exceeded, with cgroup v2.
	LimitHits, HighEvents, MaxEvents *uint64
	// MemoryLimit, SwapLimit and MemoryReserved are limits in bytes; 0 for none. With cgroup v1, SwapLimit includes the
	// memory.
	MemoryLimit, SwapLimit, MemoryReserved *uint64
	// Threads is the number of processes and threads, including the cgroups below, and MaxThreads its limit; 0 for none.
	Threads, MaxThreads *uint64
	// Processes has the processes of the cgroup itself, as this process sees them: 0 for one of another PID namespace. It
	// is nil if they could not be read.
	Processes []int
	// Disks holds the reads and writes of each disk.
	Disks []DiskIO
	// OOMKills is the number of processes that the kernel killed because the machine or the cgroup ran out of memory; nil
	// if the kernel does not count them.
	OOMKills *uint64
	// PID is a process of the cgroup or of the cgroups directly below it, as this process sees it; 0 for none.
	PID int
}

// CFS holds the throttling of processes by a cpu limit.
type CFS struct {
	// Periods is the number of elapsed enforcement periods, Throttled the number of those in which processes were
	// throttled.
	Periods, Throttled uint64
	// Time is the total throttled time.
	Time time.Duration
}

// Details reads the details of a cgroup. A file that cannot be read costs only its own values. It fails with
// fs.ErrNotExist if the cgroup does not exist, or is removed while it is read.
func (m *Machine) Details(name string) (Details, error) {
	details, err := readCgroup(m, name, detailsOfV1, detailsOfV2)
	if err != nil {
		return Details{}, fmt.Errorf("read the details of the cgroup %s: %w", name, err)
	}
	return details, nil
}

// nanosecondsPerTick converts the times in cpuacct.stat: the kernel shows 100 ticks per second on all architectures
// that Kubernetes supports.
const nanosecondsPerTick = uint64(time.Second) / 100

// detailsOfV1 reads a cgroup of version 1. The values of controllers that it does not have are nil.
func detailsOfV1(dirs map[string]string) (Details, error) {
	existing := map[string]files{}
	for controller, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			existing[controller] = files(dir)
		}
	}
	var d Details
	if dir, ok := existing["cpu"]; ok {
		d.addCPUOfV1(dir)
	}
	if dir, ok := existing["cpuacct"]; ok {
		times := dir.values("cpuacct.stat")
		d.UserTime = scaled(valueIn(times, "user"), nanosecondsPerTick)
		d.SystemTime = scaled(valueIn(times, "system"), nanosecondsPerTick)
	}
	if dir, ok := existing["memory"]; ok {
		d.addMemoryOfV1(dir)
		d.addProcesses(dir)
	}
	if dir, ok := existing["pids"]; ok {
		d.addThreads(dir)
	}
	if dir, ok := existing["blkio"]; ok {
		d.Disks = disksOfV1(dir)
	}
	if len(existing) == 0 {
		return Details{}, fs.ErrNotExist
	}
	for _, dir := range existing {
		if _, err := os.Stat(string(dir)); err != nil {
			return Details{}, err
		}
	}
	return d, nil
}

func (d *Details) addCPUOfV1(dir files) {
	d.CPUShares, d.CPUPeriod = dir.number("cpu.shares"), dir.number("cpu.cfs_period_us")
	if quota, err := strconv.ParseUint(dir.text("cpu.cfs_quota_us"), 10, 64); err == nil && quota > 0 {
		stat := dir.values("cpu.stat")
		d.CPUQuota = &quota
		d.CFS = &CFS{
			Periods: stat["nr_periods"], Throttled: stat["nr_throttled"],
			Time: time.Duration(min(stat["throttled_time"], math.MaxInt64)),
		}
	}
}

func (d *Details) addMemoryOfV1(dir files) {
	stat := dir.values("memory.stat")
	d.CacheBytes, d.MappedBytes = valueIn(stat, "total_cache"), valueIn(stat, "total_mapped_file")
	d.PeakBytes, d.LimitHits = dir.number("memory.max_usage_in_bytes"), dir.number("memory.failcnt")
	d.HighEvents, d.MaxEvents = new(uint64), new(uint64)
	d.MemoryLimit = orNone(dir.number("memory.limit_in_bytes"))
	d.SwapLimit = orNone(dir.number("memory.memsw.limit_in_bytes"))
	d.MemoryReserved = orNone(dir.number("memory.soft_limit_in_bytes"))
	d.OOMKills = counted(dir.values("memory.oom_control"), "oom_kill")
}

// detailsOfV2 reads a cgroup of version 2.
func detailsOfV2(path string) (Details, error) {
	dir := files(path)
	var d Details
	d.addCPUOfV2(dir)
	d.addMemoryOfV2(dir)
	d.addThreads(dir)
	d.addProcesses(dir)
	d.Disks = parseIOStat(dir.text("io.stat"))
	_, err := os.Stat(path)
	return d, err
}

func (d *Details) addCPUOfV2(dir files) {
	stat := dir.values("cpu.stat")
	d.UserTime = scaled(valueIn(stat, "user_usec"), uint64(time.Microsecond))
	d.SystemTime = scaled(valueIn(stat, "system_usec"), uint64(time.Microsecond))
	if weight := dir.number("cpu.weight"); weight != nil {
		shares := resources.SharesOf(*weight)
		d.CPUShares = &shares
	}
	quota, period, _ := strings.Cut(dir.text("cpu.max"), " ")
	if n, err := strconv.ParseUint(period, 10, 64); err == nil {
		d.CPUPeriod = &n
	}
	if n, err := strconv.ParseUint(quota, 10, 64); err == nil {
		d.CPUQuota = &n
		d.CFS = &CFS{
			Periods: stat["nr_periods"], Throttled: stat["nr_throttled"],
			Time: time.Duration(min(stat["throttled_usec"], math.MaxInt64/1000)) * time.Microsecond,
		}
	}
}

func (d *Details) addMemoryOfV2(dir files) {
	stat, events := dir.values("memory.stat"), dir.values("memory.events")
	d.CacheBytes, d.MappedBytes = valueIn(stat, "file"), valueIn(stat, "file_mapped")
	d.PeakBytes, d.LimitHits = dir.number("memory.peak"), new(uint64)
	d.HighEvents, d.MaxEvents = valueIn(events, "high"), valueIn(events, "max")
	d.MemoryLimit, d.SwapLimit = orNone(dir.number("memory.max")), orNone(dir.number("memory.swap.max"))
	d.MemoryReserved = orNone(dir.number("memory.min"))
	d.OOMKills = counted(events, "oom_kill")
}

func (d *Details) addThreads(dir files) {
	d.Threads, d.MaxThreads = dir.number("pids.current"), orNone(dir.number("pids.max"))
}

// addProcesses adds the processes of a cgroup. If it has none that this process sees, PID is one of a cgroup directly
// below it.
func (d *Details) addProcesses(dir files) {
	d.Processes = dir.processes()
	if d.PID = firstSeen(d.Processes); d.PID != 0 {
		return
	}
	entries, err := os.ReadDir(string(dir))
	if err != nil {
		return
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if d.PID = firstSeen(files(filepath.Join(string(dir), entry.Name())).processes()); d.PID != 0 {
				return
			}
		}
	}
}

// firstSeen returns the first process that is not of another PID namespace; 0 for none.
func firstSeen(pids []int) int {
	for _, pid := range pids {
		if pid > 0 {
			return pid
		}
	}
	return 0
}

// files reads the files in the directory of a cgroup.
type files string

// number reads a number; 0 if the file is missing, and nil if it cannot be read.
func (f files) number(name string) *uint64 {
	n, err := optional(string(f), name)
	if err != nil {
		return nil
	}
	return &n
}

// values reads names and numbers; empty if the file is missing, and nil if it cannot be read.
func (f files) values(name string) map[string]uint64 {
	all, err := values(string(f), name)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]uint64{}
	}
	if err != nil {
		return nil
	}
	return all
}

// text reads a file; empty if it is missing or cannot be read.
func (f files) text(name string) string {
	content, err := text(string(f), name)
	if err != nil {
		return ""
	}
	return content
}

// processes reads the processes of the cgroup itself; nil if they cannot be read.
func (f files) processes() []int {
	content, err := text(string(f), "cgroup.procs")
	if err != nil {
		return nil
	}
	pids := []int{}
	for line := range strings.FieldsSeq(content) {
		if pid, err := strconv.Atoi(line); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// valueIn returns a value of a file by its name; 0 if the file has no such name, and nil if it could not be read.
func valueIn(in map[string]uint64, name string) *uint64 {
	if in == nil {
		return nil
	}
	n := in[name]
	return &n
}

// counted returns a value of a file by its name; nil if the file has no such name.
func counted(in map[string]uint64, name string) *uint64 {
	if n, exists := in[name]; exists {
		return &n
	}
	return nil
}

// scaled multiplies a value; nil stays nil.
func scaled(n *uint64, by uint64) *uint64 {
	if n != nil {
		*n *= by
	}
	return n
}

// orNone replaces the kernel's value for no limit by 0.
func orNone(limit *uint64) *uint64 {
	if limit != nil && *limit >= unlimitedV1 {
		*limit = 0
	}
	return limit
}

// text reads a file; empty if it is missing or its cgroup is being removed.
func text(dir, file string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}
