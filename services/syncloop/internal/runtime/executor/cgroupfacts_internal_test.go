package executor

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestCgroupsOf(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  cgroupFacts
	}{
		{"v1", map[string]string{"sys/fs/cgroup/memory/memory.limit_in_bytes": ""}, cgroupFacts{}},
		{"v1 with swap", map[string]string{"sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": ""}, cgroupFacts{swap: true}},
		{"v2", map[string]string{"sys/fs/cgroup/cgroup.controllers": "", "proc/self/cgroup": "0::/node\n"}, cgroupFacts{v2: true}},
		{"v2 with swap", map[string]string{
			"sys/fs/cgroup/cgroup.controllers": "", "proc/self/cgroup": "0::/node\n", "sys/fs/cgroup/node/memory.swap.max": "max",
		}, cgroupFacts{v2: true, swap: true}},
		{"v2, but who knows where", map[string]string{"sys/fs/cgroup/cgroup.controllers": ""}, cgroupFacts{v2: true}},
	} {
		machine := fstest.MapFS{}
		for name, text := range test.files {
			machine[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := cgroupsOf(machine); got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}

func TestMaskedPathsOf(t *testing.T) {
	machine := fstest.MapFS{}
	for _, name := range []string{"cpu10/thermal_throttle/core_throttle_count", "cpu2/thermal_throttle/core_throttle_count", "cpu0/thermal_throttle/core_throttle_count",
		"cpu1/online", "cpufreq/thermal_throttle/policy", "online"} {
		machine["sys/devices/system/cpu/"+name] = &fstest.MapFile{}
	}
	want := []string{"/sys/devices/system/cpu/cpu0/thermal_throttle", "/sys/devices/system/cpu/cpu2/thermal_throttle", "/sys/devices/system/cpu/cpu10/thermal_throttle"}
	if got := maskedPathsOf(machine); !slices.Equal(got, want) {
		t.Errorf("masked are %q, want %q", got, want)
	}
	if got := maskedPathsOf(fstest.MapFS{}); len(got) > 0 {
		t.Errorf("masked are %q on a machine without such", got)
	}
}
