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

// Details is what a cgroup tells beside its Usage, which only dashboards ask for.
type Details struct {
	// CFS is how its limit of processor time has held it; nil where there is no limit.
	CFS *CFS
	// Disks has what was read from and written to each disk.
	Disks []DiskIO
	// OOMKills counts its processes that the kernel has killed since memory ran out; nil where the kernel does not count
	// them.
	OOMKills *uint64
	// PID is one of its processes, or of those of the cgroups directly below, as this process sees it; 0 for none.
	PID int
}

// CFS is how a limit of processor time has held processes.
type CFS struct {
	// Periods are those that the limit was looked at for, Throttled those of them in which the processes had to wait.
	Periods, Throttled uint64
	// Time is how long they have waited.
	Time time.Duration
}

// DiskIO is what was read from and written to a disk.
type DiskIO struct {
	// Device is its path, as /dev/sda; its numbers, as 8:0, where it has no name.
	Device                                 string
	ReadBytes, WrittenBytes, Reads, Writes uint64
}

// Details reads the details of a cgroup. What the kernel does not count is left out. It fails with fs.ErrNotExist when
// there is no such cgroup.
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

// disksOfV1 reads what all schedulers of disks count, and those below the cgroup, where the kernel does that.
func disksOfV1(dir string) ([]DiskIO, error) {
	read := func(what string) (string, error) {
		content, err := text(dir, "blkio.throttle."+what+"_recursive")
		if content == "" && err == nil {
			content, err = text(dir, "blkio.throttle."+what)
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

// parseBlkio reads lines as "8:0 Read 4096", of bytes and of operations.
func parseBlkio(bytes, operations string) []DiskIO {
	var disks disksByNumber
	each := func(content string, read, write func(*DiskIO) *uint64) {
		for line := range strings.Lines(content) {
			words := strings.Fields(line)
			if len(words) != 3 {
				continue // the sum of all disks
			}
			n, err := strconv.ParseUint(words[2], 10, 64)
			if err != nil {
				continue
			}
			switch words[1] {
			case "Read":
				*read(disks.of(words[0])) = n
			case "Write":
				*write(disks.of(words[0])) = n
			}
		}
	}
	each(bytes, func(d *DiskIO) *uint64 { return &d.ReadBytes }, func(d *DiskIO) *uint64 { return &d.WrittenBytes })
	each(operations, func(d *DiskIO) *uint64 { return &d.Reads }, func(d *DiskIO) *uint64 { return &d.Writes })
	return disks.all()
}

// parseIOStat reads lines as "8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0".
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
			switch disk := disks.of(words[0]); key {
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

// disksByNumber are disks in the order in which they came up, by their numbers.
type disksByNumber struct {
	numbers []string
	disks   []*DiskIO
}

func (d *disksByNumber) of(number string) *DiskIO {
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

// deviceOf returns the path of the disk with a number.
func deviceOf(number string) string {
	at, err := os.Readlink("/sys/dev/block/" + number)
	if err != nil {
		return number
	}
	return "/dev/" + filepath.Base(at)
}

// processOf returns a process of a cgroup or of those directly below; 0 when there is none that this process sees.
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
		// A process of another process namespace is 0.
		if pid, err := strconv.Atoi(first); err == nil && pid > 0 {
			return pid, nil
		}
	}
	return 0, nil
}

// counted returns a number that is there.
func counted(in map[string]uint64, name string) *uint64 {
	if n, there := in[name]; there {
		return &n
	}
	return nil
}

// present is values of a file that need not be there.
func present(dir, file string) (map[string]uint64, error) {
	all, err := values(dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return all, err
}

// text reads a file that need not be there, or of a cgroup that goes away meanwhile; empty when it is not.
func text(dir, file string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}
