package podcgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
)

func TestDetailsOfAFileTree(t *testing.T) {
	n := ptr.To[uint64]
	whole := Details{
		CFS:      &CFS{Periods: 10, Throttled: 4, Time: 1500 * time.Millisecond},
		UserTime: n(1_230_000_000), SystemTime: n(450_000_000),
		CPUShares: n(2), CPUPeriod: n(100_000), CPUQuota: n(50_000),
		CacheBytes: n(8192), MappedBytes: n(4096), PeakBytes: n(70_000),
		LimitHits: n(0), HighEvents: n(0), MaxEvents: n(0),
		MemoryLimit: n(80_000), SwapLimit: n(0), MemoryReserved: n(0),
		Threads: n(5), MaxThreads: n(100), Processes: []int{42, 43},
		Disks: []DiskIO{{
			Device: "999:0", Major: "999", Minor: "0",
			Bytes: map[string]uint64{"Read": 4096, "Write": 512}, Operations: map[string]uint64{"Read": 2, "Write": 1},
		}, {
			Device: "999:1", Major: "999", Minor: "1", Bytes: map[string]uint64{"Read": 7}, Operations: map[string]uint64{},
		}},
		OOMKills: n(3), PID: 42,
	}
	with := func(change func(*Details)) Details {
		d := whole
		change(&d)
		return d
	}
	const unlimited = "9223372036854771712"
	v1 := func(t *testing.T, more ...string) string {
		return tree(t, append([]string{
			"cpu.stat: nr_periods 10\nnr_throttled 4\nthrottled_time 1500000000", "cpu.shares: 2",
			"cpu.cfs_quota_us: 50000", "cpu.cfs_period_us: 100000", "cpuacct.stat: user 123\nsystem 45",
			"memory.stat: cache 1\ntotal_cache 8192\ntotal_mapped_file 4096", "memory.max_usage_in_bytes: 70000",
			"memory.failcnt: 6", "memory.limit_in_bytes: 80000", "memory.memsw.limit_in_bytes: 90000",
			"memory.soft_limit_in_bytes: " + unlimited, "memory.oom_control: oom_kill_disable 0\nunder_oom 0\noom_kill 3",
			"cgroup.procs: 42\n43", "pids.current: 5", "pids.max: 100",
			"blkio.throttle.io_service_bytes: 999:0 Read 1",
			"blkio.throttle.io_service_bytes_recursive: 999:0 Read 4096\n999:0 Write 512\n999:1 Read 7\nTotal 4615",
			"blkio.throttle.io_serviced_recursive: 999:0 Read 2\n999:0 Write 1\nTotal 3",
		}, more...)...)
	}
	v2 := func(t *testing.T, more ...string) string {
		return tree(t, append([]string{
			"cpu.stat: usage_usec 1\nuser_usec 1230000\nsystem_usec 450000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 1500000",
			"cpu.weight: 1", "cpu.max: 50000 100000", "memory.stat: anon 1\nfile 8192\nfile_mapped 4096",
			"memory.peak: 70000", "memory.max: 80000", "memory.swap.max: max", "memory.min: 0",
			"memory.events: low 0\nhigh 1\nmax 2\noom 5\noom_kill 3", "pids.current: 5", "pids.max: 100",
			"cgroup.procs: 42\n43",
			"io.stat: 999:0 rbytes=4096 wbytes=512 rios=2 wios=1 dbytes=0 dios=0\n999:1 rbytes=7\n999:2",
		}, more...)...)
	}
	all := func(dir string) map[string]string {
		return map[string]string{"cpu": dir, "cpuacct": dir, "memory": dir, "pids": dir, "blkio": dir, unified: dir}
	}
	ofV1 := with(func(d *Details) { d.LimitHits, d.SwapLimit = n(6), n(90_000) })
	ofV2 := with(func(d *Details) { d.HighEvents, d.MaxEvents = n(1), n(2) })
	for name, test := range map[string]struct {
		read func(t *testing.T) (Details, error)
		want Details
	}{
		"version 1": {func(t *testing.T) (Details, error) { return detailsOfV1(all(v1(t))) }, ofV1},
		"version 1 without limits, with counters of the BFQ scheduler only": {func(t *testing.T) (Details, error) {
			return detailsOfV1(all(v1(t, "cpu.cfs_quota_us: -1", "memory.limit_in_bytes: "+unlimited, "pids.max: max",
				"cgroup.procs: 0", "blkio.throttle.io_service_bytes: Total 0",
				"blkio.throttle.io_service_bytes_recursive: Total 0", "blkio.throttle.io_serviced_recursive: Total 0",
				"blkio.bfq.io_service_bytes_recursive: 999:3 Read 4096\n999:3 Total 4096\nTotal 4096")))
		}, func() Details {
			d := ofV1
			d.CFS, d.CPUQuota, d.MemoryLimit, d.MaxThreads, d.Processes, d.PID = nil, nil, n(0), n(0), []int{0}, 0
			d.Disks = []DiskIO{{
				Device: "999:3", Major: "999", Minor: "3",
				Bytes: map[string]uint64{"Read": 4096, "Total": 4096}, Operations: map[string]uint64{},
			}}
			return d
		}()},
		"version 1 with files that are missing": {func(t *testing.T) (Details, error) {
			return detailsOfV1(map[string]string{"memory": t.TempDir()})
		}, Details{
			CacheBytes: n(0), MappedBytes: n(0), PeakBytes: n(0), LimitHits: n(0), HighEvents: n(0), MaxEvents: n(0),
			MemoryLimit: n(0), SwapLimit: n(0), MemoryReserved: n(0), Processes: []int{},
		}},
		"version 2": {func(t *testing.T) (Details, error) { return detailsOfV2(v2(t)) }, ofV2},
		"version 2 with files that cannot be read": {func(t *testing.T) (Details, error) {
			return detailsOfV2(v2(t, "memory.peak: many", "memory.stat: file many", "cpu.weight: -", "pids.max: -", "memory.min: -"))
		}, func() Details {
			d := ofV2
			d.PeakBytes, d.CacheBytes, d.MappedBytes, d.CPUShares, d.MaxThreads, d.MemoryReserved = nil, nil, nil, nil, nil, nil
			return d
		}()},
		"version 2, a pod without limits": {func(t *testing.T) (Details, error) {
			dir := v2(t, "cpu.max: max 100000", "cgroup.procs: ", "memory.max: max", "pids.max: max")
			below := filepath.Join(dir, "container")
			if err := os.Mkdir(below, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte("42\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return detailsOfV2(dir)
		}, func() Details {
			d := ofV2
			d.CFS, d.CPUQuota, d.MemoryLimit, d.MaxThreads, d.Processes = nil, nil, n(0), n(0), []int{}
			return d
		}()},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.read(t)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	none := filepath.Join(t.TempDir(), "none")
	if _, err := detailsOfV1(all(none)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("detailsOfV1(none) = %v, want %v", err, fs.ErrNotExist)
	}
	if _, err := detailsOfV2(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("detailsOfV2(none) = %v, want %v", err, fs.ErrNotExist)
	}
}
