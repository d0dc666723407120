package podcgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"
)

// tree writes the files of a cgroup, each as "NAME: CONTENT".
func tree(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range files {
		name, content, _ := strings.Cut(file, ": ")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestUsageOfAFileTree(t *testing.T) {
	v1 := func(t *testing.T) (Usage, error) {
		dir := tree(t, "cpuacct.usage: 1500000000", "memory.usage_in_bytes: 1000", "memory.limit_in_bytes: 4096", "pids.current: 7",
			"memory.stat: rss 1\ntotal_rss 300\ntotal_inactive_file 400\ntotal_pgfault 5\ntotal_pgmajfault 6\ntotal_swap 8")
		return usageOfV1(map[string]string{"cpuacct": dir, "memory": dir, "pids": dir, unified: dir})
	}
	v2 := []string{"cpu.stat: usage_usec 1500000\nuser_usec 1", "memory.current: 1000", "memory.max: 4096", "memory.swap.current: 8", "pids.current: 7",
		"memory.stat: anon 300\nfile 600\ninactive_file 400\npgfault 5\npgmajfault 6"}
	without := func(names ...string) []string {
		var left []string
		for _, file := range v2 {
			name, _, _ := strings.Cut(file, ":")
			if !strings.Contains(strings.Join(names, " "), name) {
				left = append(left, file)
			}
		}
		return left
	}
	waited := statsv1alpha1.PSIData{Avg10: 1.5, Avg60: 2, Avg300: 0.25, Total: 1234}
	stalled := statsv1alpha1.PSIData{Avg60: 0.1, Avg300: 0.2, Total: 99}
	whole := Usage{
		CPU: 1500 * time.Millisecond, MemoryBytes: 1000, WorkingSetBytes: 600, RSSBytes: 300, MemoryLimitBytes: 4096,
		SwapBytes:  8,
		PageFaults: 5, MajorPageFaults: 6, Processes: 7,
	}
	for name, test := range map[string]struct {
		read func(*testing.T) (Usage, error)
		want Usage
	}{
		"version 1": {v1, whole},
		"version 1 without limits, for the whole machine": {func(t *testing.T) (Usage, error) {
			dir := tree(t, "memory.usage_in_bytes: 1000", "memory.limit_in_bytes: 9223372036854771712", "memory.stat: total_inactive_file 2000")
			return usageOfV1(map[string]string{"memory": dir, "pids": dir})
		}, Usage{MemoryBytes: 1000}},
		"version 2": {func(t *testing.T) (Usage, error) { return usageOfV2(tree(t, v2...)) }, whole},
		"version 2 without limits": {func(t *testing.T) (Usage, error) {
			return usageOfV2(tree(t, append(without("memory.max", "memory.swap.current"), "memory.max: max")...))
		}, Usage{
			CPU: 1500 * time.Millisecond, MemoryBytes: 1000, WorkingSetBytes: 600, RSSBytes: 300, PageFaults: 5,
			MajorPageFaults: 6, Processes: 7,
		}},
		"version 2, the whole machine": {func(t *testing.T) (Usage, error) {
			return usageOfV2(tree(t, without("memory.current", "memory.max", "memory.swap.current", "pids.current")...))
		}, Usage{
			CPU: 1500 * time.Millisecond, MemoryBytes: 900, WorkingSetBytes: 500, RSSBytes: 300, PageFaults: 5,
			MajorPageFaults: 6,
		}},
		"version 2 with a limit of swap": {func(t *testing.T) (Usage, error) {
			return usageOfV2(tree(t, "cpu.stat: a 0", "memory.stat: anon 0", "memory.current: 1",
				"memory.swap.max: 0", "memory.swap.current: 2"))
		}, Usage{MemoryBytes: 1, WorkingSetBytes: 1, SwapBytes: 2, SwapLimitBytes: new(uint64)}},
		"version 2 without a limit of swap": {func(t *testing.T) (Usage, error) {
			return usageOfV2(tree(t, "cpu.stat: a 0", "memory.stat: anon 0", "memory.current: 1", "memory.swap.max: max"))
		}, Usage{MemoryBytes: 1, WorkingSetBytes: 1}},
		"version 2 with pressure": {func(t *testing.T) (Usage, error) {
			const some = "some avg10=1.50 avg60=2.00 avg300=0.25 total=1234"
			const full = "full avg10=0.00 avg60=0.10 avg300=0.20 total=99"
			return usageOfV2(tree(t, "cpu.stat: usage_usec 1", "cpu.pressure: "+some, "io.pressure: "+some+"\n"+full,
				"memory.pressure: "+full+"\nlater avg10=1.50\n"))
		}, Usage{CPU: time.Microsecond, Pressure: Pressure{
			CPU: &statsv1alpha1.PSIStats{Some: waited}, IO: &statsv1alpha1.PSIStats{Some: waited, Full: stalled},
			Memory: &statsv1alpha1.PSIStats{Full: stalled},
		}}},
		"version 2 without the controller of memory": {func(t *testing.T) (Usage, error) {
			return usageOfV2(tree(t, "cpu.stat: usage_usec 1"))
		}, Usage{CPU: time.Microsecond}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.read(t)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := usageOfV2(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a cgroup that is not there: %v", err)
	}
	if _, err := usageOfV2(tree(t, "cpu.stat: usage_usec many")); err == nil || !strings.Contains(err.Error(), "cpu.stat") {
		t.Errorf("an invalid file: %v", err)
	}
	_, err := usageOfV2(tree(t, "cpu.stat: usage_usec 1", "io.pressure: some avg10=much"))
	if err == nil || !strings.Contains(err.Error(), "io.pressure") {
		t.Errorf("an invalid pressure: %v", err)
	}
}

// TestUsageOfThisMachine reads the kernel's values of the whole machine, for any version of cgroups.
func TestUsageOfThisMachine(t *testing.T) {
	machine := NewMachine("cgroupfs", clock.RealClock{})
	if _, err := machine.mounts(); err != nil {
		t.Skip(err)
	}
	usage, err := machine.Usage("/")
	if err != nil {
		t.Fatal(err)
	}
	if usage.CPU <= 0 || usage.WorkingSetBytes == 0 || usage.WorkingSetBytes > usage.MemoryBytes || usage.At.IsZero() {
		t.Errorf("the machine uses %+v", usage)
	}
	if _, err := machine.Usage("/there/is/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a cgroup that is not there: %v", err)
	}
	if below, err := machine.Below("/there/is/none"); below != nil || err != nil {
		t.Errorf("below it there is %q, %v", below, err)
	}
}
