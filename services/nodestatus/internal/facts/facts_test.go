package facts

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

func TestThisMachine(t *testing.T) {
	m, err := ReadMachine(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if m.CPUs < 1 || m.MemoryBytes < 64<<20 || m.KernelVersion == "" || m.BootID == "" || m.OSImage == "" {
		t.Errorf("this machine is read as %+v", m)
	}
	if m.OperatingSystem != "linux" || m.Architecture != runtime.GOARCH {
		t.Errorf("platform is %s/%s, want %q and %s", m.OperatingSystem, m.Architecture, "linux", runtime.GOARCH)
	}
	r, err := ReadNow(t.TempDir(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if r.MemoryAvailableBytes <= 0 || r.MemoryAvailableBytes > m.MemoryBytes {
		t.Errorf("available memory is %d of %d", r.MemoryAvailableBytes, m.MemoryBytes)
	}
	if r.NodeFS.CapacityBytes <= 0 || r.NodeFS.AvailableBytes > r.NodeFS.CapacityBytes {
		t.Errorf("file system is read as %+v", r.NodeFS)
	}
	if r.RunningPIDs < 1 || r.MaxPIDs <= r.RunningPIDs {
		t.Errorf("processes: %d of %d", r.RunningPIDs, r.MaxPIDs)
	}
}

func TestDirectoryThatIsNotThereYet(t *testing.T) {
	dir := t.TempDir()
	want, err := filesystem(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := filesystem(filepath.Join(dir, "not", "yet"))
	if err != nil {
		t.Fatal(err)
	}
	if got.CapacityBytes != want.CapacityBytes {
		t.Errorf("capacity = %d, want that of the directory above, %d", got.CapacityBytes, want.CapacityBytes)
	}
}

func TestPartialResultsAreReturnedWithTheError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := ReadNow(filepath.Join(file, "below"), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want an error that names %s", err, file)
	}
	if r.MemoryAvailableBytes == 0 || r.MaxPIDs == 0 {
		t.Errorf("the rest was not read: %+v", r)
	}
}

// TestAvailableMemoryIsWhatTheRootCgroupLeaves compares the value with the kernel's own sum, on machines with cgroup
// v1.
func TestAvailableMemoryIsWhatTheRootCgroupLeaves(t *testing.T) {
	proc := procWith(
		t,
		"MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\nAnonPages: 200 kB\nCached: 250 kB\nBuffers: 30 kB\nSwapCached: 20 kB\n",
	)
	if got, err := memoryAvailable(proc); err != nil || got != 600<<10 {
		t.Errorf("%d kB, %v, want 1000 less 500 of which 100 were not used lately", got>>10, err)
	}
	const root = "/sys/fs/cgroup/memory/memory.usage_in_bytes"
	usage, err := os.ReadFile(root)
	if err != nil {
		t.Skip(err)
	}
	stat, err := os.ReadFile(filepath.Join(filepath.Dir(root), "memory.stat"))
	if err != nil {
		t.Fatal(err)
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(usage)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), "\ntotal_inactive_file ")
	number, _, _ := strings.Cut(rest, "\n")
	inactive, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := ReadMachine(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got, err := memoryAvailable("/proc")
	const moment = 256 << 20 // the tolerated change of memory by others meanwhile
	if want := machine.MemoryBytes - used + inactive; err != nil || got < want-moment || got > want+moment {
		t.Errorf("%d bytes, %v; the root cgroup leaves %d", got, err, want)
	}
}

// procWith returns a /proc with a meminfo.
func procWith(t *testing.T, meminfo string) string {
	t.Helper()
	proc := t.TempDir()
	if err := os.WriteFile(filepath.Join(proc, "meminfo"), []byte(meminfo), 0o600); err != nil {
		t.Fatal(err)
	}
	return proc
}

func TestMeminfoThatCannotBeRead(t *testing.T) {
	const rest = "MemTotal: 1000 kB\nAnonPages: 200 kB\nCached: 250 kB\nBuffers: 30 kB\nSwapCached: 20 kB\n"
	for name, meminfo := range map[string]string{
		"no Inactive(file)": rest, "another unit": rest + "Inactive(file): 3 MB\n", "no number": rest + "Inactive(file): x kB\n",
		"negative": rest + "Inactive(file): -2 kB\n",
	} {
		if got, err := memoryAvailable(procWith(t, meminfo)); err == nil {
			t.Errorf("%s: read as %v", name, got)
		}
	}
	if _, err := memoryAvailable(procWith(t, rest)); err == nil || !strings.Contains(err.Error(), "Inactive(file)") {
		t.Errorf("got %v, want an error that names the field", err)
	}
}

func TestTheLeastLimitOfProcessesCounts(t *testing.T) {
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "sys/kernel"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"sys/kernel/pid_max": "4194304\n", "sys/kernel/threads-max": "1000\n", "loadavg": "0 0 0 1/20 3\n"} {
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	limit, running, err := processes(proc, t.TempDir())
	if err != nil || limit != 1000 || running != 20 {
		t.Errorf("got %d, %d, %v, want 1000, 20", limit, running, err)
	}
}

func TestCgroupVersionIsThatOfTheFileSystem(t *testing.T) {
	if got := cgroupVersion(t.TempDir()); got != 1 {
		t.Errorf("a directory that is no unified hierarchy is of version %d, want 1", got)
	}
	const hybrid = "/sys/fs/cgroup/unified"
	if _, err := os.Stat(hybrid); err != nil {
		t.Skip("no unified hierarchy beside others on this machine")
	}
	if got := cgroupVersion(hybrid); got != 2 {
		t.Errorf("a unified hierarchy is of version %d, want 2", got)
	}
}

// TestUserNamespace has the kernel's maps of user IDs: of a process of the machine, of one in a user namespace, and of
// one whose map is not written yet.
func TestUserNamespace(t *testing.T) {
	for ids, want := range map[string]bool{
		"         0          0 4294967295\n": false, "         0       1000          1\n         1     100000      65536\n": true, "": true,
	} {
		file := filepath.Join(t.TempDir(), "uid_map")
		if err := os.WriteFile(file, []byte(ids), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := userNamespace(file); got != want {
			t.Errorf("%q: userNamespace() = %t, want %t", ids, got, want)
		}
	}
	if userNamespace(filepath.Join(t.TempDir(), "none")) {
		t.Error("a kernel without user namespaces has one")
	}
}
