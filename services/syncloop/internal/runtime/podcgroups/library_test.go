package podcgroups

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// The tests in this file check the input of the library on machines other than the one that runs them.

func TestWeightsOfVersion2AreTheKubelets(t *testing.T) {
	for shares, want := range map[uint64]uint64{
		0: 0, 1: 1, 2: 1, 102: 4, 256: 10, 512: 20, 1024: 39, 2048: 79, 262143: 9999, 262144: 10000, 1 << 30: 10000,
	} {
		if got := resources.Weight(shares); got != want {
			t.Errorf("%d shares are the weight %d, want %d", shares, got, want)
		}
	}
}

func TestTheHierarchiesOfVersion1AreFound(t *testing.T) {
	table := []*mountinfo.Info{
		{Mountpoint: "/sys/fs/cgroup/cpu,cpuacct", Root: "/", VFSOptions: "rw,cpu,cpuacct"},
		{Mountpoint: "/var/lib/machines/a/sys/fs/cgroup/memory", Root: "/", VFSOptions: "rw,memory"},
		{Mountpoint: "/sys/fs/cgroup/memory", Root: "/", VFSOptions: "rw,memory"},
		{Mountpoint: "/mnt/pids", Root: "/docker/1234", VFSOptions: "rw,pids"}, // a part of the hierarchy, as in a container
		{Mountpoint: "/sys/fs/cgroup/pids", Root: "/", VFSOptions: "rw,pids"},
		{Mountpoint: "/sys/fs/cgroup/systemd", Root: "/", VFSOptions: "rw,xattr,name=systemd"},
		{Mountpoint: "/sys/fs/cgroup/debug", Root: "/", VFSOptions: "rw,debug"},
	}
	want := map[string]string{
		"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct", "memory": "/sys/fs/cgroup/memory",
		"pids": "/sys/fs/cgroup/pids", "name=systemd": "/sys/fs/cgroup/systemd",
	}
	if diff := cmp.Diff(want, v1Mounts(table)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestWhatTheLibraryIsGiven(t *testing.T) {
	r := resources.Resources{CPUShares: 1024, CPUQuota: 50000, CPUPeriod: 100000, Memory: 1 << 20, PIDs: 7}
	pids := int64(7)
	v1 := map[string]string{"cpu": root + "/cpu", "memory": root + "/memory", "pids": root + "/pids"}
	v2 := map[string]string{unified: root}
	common := cgroups.Resources{
		SkipDevices: true, SkipFreezeOnSet: true, CpuQuota: 50000, CpuPeriod: 100000, Memory: 1 << 20, PidsLimit: &pids,
	}
	shares, weighed := common, common
	shares.CpuShares, weighed.CpuWeight = 1024, 39
	name := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu.slice"
	for _, tc := range []struct {
		what, driver, name string
		at                 map[string]string
		want               cgroups.Cgroup
	}{
		{"version 1", "cgroupfs", "/kubepods/podu", v1, cgroups.Cgroup{Path: "/kubepods/podu", Resources: &shares}},
		{"version 2", "cgroupfs", "/kubepods/podu", v2, cgroups.Cgroup{Path: "/kubepods/podu", Resources: &weighed}},
		{
			"a slice", "systemd", name, v2,
			cgroups.Cgroup{Systemd: true, Name: "kubepods-burstable-podu.slice", Parent: "kubepods-burstable.slice", Resources: &weighed},
		},
		{"the first slice", "systemd", "/kubepods.slice", v1, cgroups.Cgroup{Systemd: true, Name: "kubepods.slice", Parent: "-.slice", Resources: &shares}},
	} {
		m := NewMachine(tc.driver, clock.RealClock{})
		m.at = tc.at
		if diff := cmp.Diff(&tc.want, m.config(tc.name, r)); diff != "" {
			t.Errorf("%s: -want +got\n%s", tc.what, diff)
		}
	}
}

// TestTheFilesOfVersion2HaveWhatAPodIsGiven uses a tree of files like that of a machine with cgroup v2. The library
// checks the type of the file system before it creates a folder, so the test creates the folders.
func TestTheFilesOfVersion2HaveWhatAPodIsGiven(t *testing.T) {
	cgroups.TestMode = true // accepts files outside of the kernel's file system
	defer func() { cgroups.TestMode = false }()
	mount, name := t.TempDir(), "/kubepods/burstable/podu"
	dir := filepath.Join(mount, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{mount, dir} {
		if err := os.WriteFile(filepath.Join(folder, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := NewMachine("cgroupfs", clock.RealClock{})
	m.at = map[string]string{unified: mount}
	for _, step := range []struct {
		given resources.Resources
		want  map[string]string
	}{
		{
			resources.Resources{CPUShares: 512, CPUQuota: 100000, CPUPeriod: 100000, Memory: 64 << 20, PIDs: 50},
			map[string]string{"cpu.weight": "20", "cpu.max": "100000 100000", "memory.max": "67108864", "pids.max": "50"},
		},
		{
			resources.Resources{
				CPUShares: 2, CPUQuota: resources.NoLimit, CPUPeriod: 100000, Memory: resources.NoLimit, PIDs: 50,
			},
			map[string]string{"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max", "pids.max": "50"},
		},
	} {
		manager, err := m.manager(name, step.given)
		if err == nil {
			err = manager.Set(m.resources(step.given))
		}
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for file := range step.want {
			data, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Error(err)
			}
			got[file] = string(data)
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	if !m.Has(name) || m.Has("/kubepods/podother") {
		t.Error("a cgroup is there by its folder in the one hierarchy")
	}
}

// TestALimitIsTakenAwayOnlyWhereThereCanBeOne checks that a machine without a controller runs pods without a limit of
// it.
func TestALimitIsTakenAwayOnlyWhereThereCanBeOne(t *testing.T) {
	m := NewMachine("cgroupfs", clock.RealClock{})
	m.at = map[string]string{"cpu": root + "/cpu"}
	got := m.resources(resources.Resources{
		CPUShares: 2, CPUQuota: resources.NoLimit, Memory: resources.NoLimit, HugePages: map[int64]int64{},
	})
	want := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, CpuShares: 2, CpuQuota: resources.NoLimit}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestSizesOfHugePages(t *testing.T) {
	for size, want := range map[string]int64{"64KB": 64 << 10, "2MB": 2 << 20, "1GB": 1 << 30, "MB": 0, "2": 0} {
		if got := bytesOf(size); got != want {
			t.Errorf("%s is %d, want %d", size, got, want)
		}
	}
}
