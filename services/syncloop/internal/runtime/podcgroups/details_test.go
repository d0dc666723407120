package podcgroups

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDetailsOfAFileTree(t *testing.T) {
	kills := uint64(3)
	disks := []DiskIO{{Device: "999:0", ReadBytes: 4096, WrittenBytes: 512, Reads: 2, Writes: 1}, {Device: "999:1", ReadBytes: 7}}
	whole := Details{
		CFS: &CFS{Periods: 10, Throttled: 4, Time: 1500 * time.Millisecond}, Disks: disks, OOMKills: &kills, PID: 42,
	}
	for name, test := range map[string]struct {
		read func(t *testing.T) (Details, error)
		want Details
	}{
		"version 1": {func(t *testing.T) (Details, error) {
			dir := tree(t, "cpu.stat: nr_periods 10\nnr_throttled 4\nthrottled_time 1500000000", "cpu.cfs_quota_us: 50000",
				"memory.oom_control: oom_kill_disable 0\nunder_oom 0\noom_kill 3", "cgroup.procs: 42\n43",
				"blkio.throttle.io_service_bytes: 999:0 Read 1",
				"blkio.throttle.io_service_bytes_recursive: 999:0 Read 4096\n999:0 Write 512\n999:0 Sync 0\n999:0 Total 4608\n999:1 Read 7\nTotal 4615",
				"blkio.throttle.io_serviced: 999:0 Read 2\n999:0 Write 1\nTotal 3")
			return detailsOfV1(map[string]string{"cpu": dir, "memory": dir, "blkio": dir})
		}, whole},
		"version 1 without a limit, and nothing counted": {func(t *testing.T) (Details, error) {
			dir := tree(t, "cpu.stat: nr_periods 10", "cpu.cfs_quota_us: -1", "memory.oom_control: oom_kill_disable 0", "cgroup.procs: 0")
			return detailsOfV1(map[string]string{"cpu": dir, "memory": dir, "blkio": dir})
		}, Details{Disks: []DiskIO{}}},
		"version 2": {func(t *testing.T) (Details, error) {
			dir := tree(t, "cpu.stat: usage_usec 1\nnr_periods 10\nnr_throttled 4\nthrottled_usec 1500000", "cpu.max: 50000 100000",
				"memory.events: low 0\noom 5\noom_kill 3", "io.stat: 999:0 rbytes=4096 wbytes=512 rios=2 wios=1 dbytes=0 dios=0\n999:1 rbytes=7\n999:2")
			below := filepath.Join(dir, "container")
			if err := os.Mkdir(below, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte("42\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return detailsOfV2(dir)
		}, whole},
		"version 2 without a limit, and nothing counted": {func(t *testing.T) (Details, error) {
			return detailsOfV2(tree(t, "cpu.stat: usage_usec 1", "cpu.max: max 100000"))
		}, Details{Disks: []DiskIO{}}},
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
}
