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
)

// Details holds the statistics of a cgroup that only dashboards need, in addition to Usage.
type Details struct {
	// CFS holds the throttling by the cpu limit; nil without a limit.
	CFS *CFS
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

// DiskIO holds the reads and writes of a disk.
type DiskIO struct {
	// Device is the path of the disk, for example /dev/sda, or its numbers, for example 8:0, if it has no name.
	Device                                 string
	ReadBytes, WrittenBytes, Reads, Writes uint64
}

// Details reads the details of a cgroup. Values that the kernel does not count are left out. It fails with
// fs.ErrNotExist if the cgroup does not exist.
func (m *Machine) Details(name string) (Details, error) {
	details, err := readCgroup(m, name, detailsOfV1, detailsOfV2)
	if err != nil {
		return Details{}, fmt.Errorf("read the details of the cgroup %s: %w", name, err)
	}
	return details, nil
}

func detailsOfV1(dirs map[string]string) (Details, error) {
	var d Details
	if dir, ok := dirs["cpu"]; ok {
		stat, err := present(dir, "cpu.stat")
		if err != nil {
			return Details{}, err
		}
		quota, err := text(dir, "cpu.cfs_quota_us")
		if err != nil {
			return Details{}, err
		}
		if limit, err := strconv.ParseInt(quota, 10, 64); err == nil && limit > 0 {
			d.CFS = &CFS{Periods: stat["nr_periods"], Throttled: stat["nr_throttled"], Time: time.Duration(min(stat["throttled_time"], math.MaxInt64))}
		}
	}
	if dir, ok := dirs["memory"]; ok {
		control, err := present(dir, "memory.oom_control")
		if err != nil {
			return Details{}, err
		}
		d.OOMKills = counted(control, "oom_kill")
		if d.PID, err = processOf(dir); err != nil {
			return Details{}, err
		}
	}
	if dir, ok := dirs["blkio"]; ok {
		var err error
		if d.Disks, err = disksOfV1(dir); err != nil {
			return Details{}, err
		}
	}
	return d, nil
}

func detailsOfV2(dir string) (Details, error) {
	var d Details
	stat, err := present(dir, "cpu.stat")
	if err != nil {
		return Details{}, err
	}
	quota, err := text(dir, "cpu.max")
	if err != nil {
		return Details{}, err
	}
	if quota != "" && !strings.HasPrefix(quota, "max") {
		d.CFS = &CFS{
			Periods: stat["nr_periods"], Throttled: stat["nr_throttled"],
			Time: time.Duration(min(stat["throttled_usec"], math.MaxInt64/1000)) * time.Microsecond,
		}
	}
	events, err := present(dir, "memory.events")
	if err != nil {
		return Details{}, err
	}
	d.OOMKills = counted(events, "oom_kill")
	io, err := text(dir, "io.stat")
	if err != nil {
		return Details{}, err
	}
	d.Disks = parseIOStat(io)
	d.PID, err = processOf(dir)
	return d, err
}

// disksOfV1 reads the counters of all disk schedulers, including those of the cgroups below where the kernel counts
// them.
func disksOfV1(dir string) ([]DiskIO, error) {
	read := func(name string) (string, error) {
		content, err := text(dir, "blkio.throttle."+name+"_recursive")
		if content == "" && err == nil {
			content, err = text(dir, "blkio.throttle."+name)
		}
		return content, err
	}
	bytes, err := read("io_service_bytes")
	if err != nil {
		return nil, err
	}
	operations, err := read("io_serviced")
	if err != nil {
		return nil, err
	}
	return parseBlkio(bytes, operations), nil
}

// parseBlkio parses lines of bytes and of operations, for example "8:0 Read 4096".
func parseBlkio(bytes, operations string) []DiskIO {
	var disks disksByNumber
	each := func(content string, read, write func(*DiskIO) *uint64) {
		for line := range strings.Lines(content) {
			words := strings.Fields(line)
			if len(words) != 3 {
				continue // the total of all disks
			}
			n, err := strconv.ParseUint(words[2], 10, 64)
			if err != nil {
				continue
			}
			switch words[1] {
			case "Read":
				*read(disks.disk(words[0])) = n
			case "Write":
				*write(disks.disk(words[0])) = n
			}
		}
	}
	each(bytes, func(d *DiskIO) *uint64 { return &d.ReadBytes }, func(d *DiskIO) *uint64 { return &d.WrittenBytes })
	each(operations, func(d *DiskIO) *uint64 { return &d.Reads }, func(d *DiskIO) *uint64 { return &d.Writes })
	return disks.all()
}

// parseIOStat parses lines like "8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0".
func parseIOStat(content string) []DiskIO {
	var disks disksByNumber
	for line := range strings.Lines(content) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue
			}
			switch disk := disks.disk(words[0]); key {
			case "rbytes":
				disk.ReadBytes = n
			case "wbytes":
				disk.WrittenBytes = n
			case "rios":
				disk.Reads = n
			case "wios":
				disk.Writes = n
			}
		}
	}
	return disks.all()
}

// disksByNumber holds disks by their numbers, in the order of their first occurrence.
type disksByNumber struct {
	numbers []string
	disks   []*DiskIO
}

func (d *disksByNumber) disk(number string) *DiskIO {
	for i, known := range d.numbers {
		if known == number {
			return d.disks[i]
		}
	}
	disk := &DiskIO{Device: deviceOf(number)}
	d.numbers, d.disks = append(d.numbers, number), append(d.disks, disk)
	return disk
}

func (d *disksByNumber) all() []DiskIO {
	all := make([]DiskIO, 0, len(d.disks))
	for _, disk := range d.disks {
		all = append(all, *disk)
	}
	return all
}

// deviceOf returns the path of the disk with the number.
func deviceOf(number string) string {
	at, err := os.Readlink("/sys/dev/block/" + number)
	if err != nil {
		return number
	}
	return "/dev/" + filepath.Base(at)
}

// processOf returns a process of a cgroup or of those directly below it; 0 if there is none that this process sees.
func processOf(dir string) (int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	dirs := []string{dir}
	for _, entry := range entries {
		if entry.IsDir() {
			dirs = append(dirs, filepath.Join(dir, entry.Name()))
		}
	}
	for _, dir := range dirs {
		content, err := text(dir, "cgroup.procs")
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(content, "\n")
		// A process of another PID namespace has the number 0.
		if pid, err := strconv.Atoi(first); err == nil && pid > 0 {
			return pid, nil
		}
	}
	return 0, nil
}

// counted returns a number by its name; nil if it does not exist.
func counted(in map[string]uint64, name string) *uint64 {
	if n, exists := in[name]; exists {
		return &n
	}
	return nil
}

// present is values for a file that may be missing.
func present(dir, file string) (map[string]uint64, error) {
	all, err := values(dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return all, err
}

// text reads a file; empty if it is missing or its cgroup is being removed.
func text(dir, file string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}
