package stats

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/test/require"
)

// processWith adds a process with file descriptors to a directory like /proc.
func processWith(t *testing.T, proc string, pid int, limit string, targets ...string) {
	t.Helper()
	dir := filepath.Join(proc, strconv.Itoa(pid))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "fd"), 0o700))
	limits := fmt.Sprintf("%-26s%-21s%-21s%-10s\n%-26s%-21s%-21s%-10s\n",
		"Limit", "Soft Limit", "Hard Limit", "Units", "Max open files", limit, "524288", "files")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "limits"), []byte(limits), 0o600))
	for i, target := range targets {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, "fd", strconv.Itoa(i))))
	}
}

func TestOpenFilesOfProcesses(t *testing.T) {
	proc := t.TempDir()
	processWith(t, proc, 1, "unlimited", "socket:[1]")
	processWith(t, proc, 42, "1024", "/dev/null", "socket:[2]", "socket:[3]")
	processWith(t, proc, 43, "2048", "anon_inode:[eventpoll]")
	processWith(t, proc, 44, "65536", "/dev/null", "/dev/zero", "/dev/full")
	const most = 5
	n := ptr.To[uint64]
	for name, tc := range map[string]struct {
		cgroup string
		pids   []int
		want   Opened
	}{
		"a container, with a process that has ended": {"/c", []int{42, 43, 99}, Opened{Descriptors: n(4), Sockets: n(2), Limit: n(1024)}},
		"a pod":                              {"/p", []int{}, Opened{Descriptors: n(0), Sockets: n(0)}},
		"the machine":                        {wholeMachine, []int{42}, Opened{Descriptors: n(3), Sockets: n(2), Limit: n(math.MaxUint64)}},
		"processes of another PID namespace": {"/c", []int{0, 42}, Opened{}},
		"processes that cannot be read":      {"/c", nil, Opened{}},
		"too many files":                     {"/c", []int{42, 44}, Opened{Limit: n(1024)}},
		"too many processes":                 {"/c", []int{42, 43, 99, 100, 101, 102}, Opened{Limit: n(1024)}},
	} {
		if diff := cmp.Diff(tc.want, openedBy(proc, tc.cgroup, tc.pids, most)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestDisksWithMountedFileSystems(t *testing.T) {
	proc := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "self"), 0o700))
	const disks = `   8       0 sda 1 0 8 0 0 0 0 0 0 0 0
   8       1 sda1 11 12 13 14 15 16 17 18 19 20 21
   7       0 loop0 1 0 8 0 0 0 0 0 0 0 0
`
	const mounts = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw - proc proc rw
24 22 8:1 /var/lib /data rw shared:1 - ext4 /dev/sda1 rw
`
	if got := mountedDisks(proc, t.TempDir()); got != nil {
		t.Errorf("mountedDisks() = %+v without files, want none", got)
	}
	require.NoError(t, os.WriteFile(filepath.Join(proc, "diskstats"), []byte(disks), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(proc, "self/mountinfo"), []byte(mounts), 0o600))
	got := mountedDisks(proc, t.TempDir())
	if len(got) != 1 || got[0].DeviceName != "sda1" || got[0].WriteTicks != 18 || got[0].WeightedIOTicks != 21 {
		t.Errorf("mountedDisks() = %+v, want sda1 only", got)
	}
	want := []podcgroups.DiskIO{{
		Device: "/dev/sda1", Major: "8", Minor: "1",
		Bytes: map[string]uint64{"Read": 13 * 512, "Write": 17 * 512}, Operations: map[string]uint64{"Read": 11, "Write": 15},
	}}
	if diff := cmp.Diff(want, transfersOf(got)); diff != "" {
		t.Errorf("transfersOf() (-want +got):\n%s", diff)
	}
}
