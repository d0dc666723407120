package vm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/require"
)

// TestMain is also the program of the machines of this test, by its first argument.
func TestMain(m *testing.M) {
	if inside() && len(os.Args) > 1 {
		switch os.Args[1] {
		case "fails":
			fmt.Print("one line\nanother\n")
			os.Exit(3)
		case "dies":
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		case "hangs":
			_ = unix.Pause()
		}
	}
	os.Exit(m.Run())
}

// runProgram runs this binary in a machine.
func runProgram(t *testing.T, m Machine, args ...string) (Result, error) {
	t.Helper()
	require.NoError(t, m.missing())
	dir := t.TempDir()
	program := filepath.Join(dir, "test")
	if err := buildTest(program); err != nil {
		t.Fatal(err)
	}
	return m.Run(t.Context(), dir, program, args...)
}

func TestTheMachineHasItsDisksModulesAndFileSystems(t *testing.T) {
	if !Inside(t, Machine{
		Modules: []string{"xfs", "ext4"}, Programs: []string{"/sbin/mount.nfs"},
		Disks: []Disk{
			{MiB: 16, Format: []string{"mkfs.ext4", "-q"}}, {MiB: 512, Format: []string{"mkfs.xfs", "-q"}}, {MiB: 1},
		},
	}) {
		return
	}
	for device, kind := range map[string]string{"/dev/vda": "ext4", "/dev/vdb": "xfs"} {
		dir := t.TempDir()
		if err := unix.Mount(device, dir, kind, 0, ""); err != nil {
			t.Fatalf("mount %s: %v", kind, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}
	for _, path := range []string{"/dev/vdc", "/sys/fs/cgroup/cgroup.controllers", "/proc/self/status", "/sbin/mount.nfs"} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if cmdline, err := os.ReadFile("/proc/cmdline"); err != nil || os.Getpid() == 1 || os.Getuid() != 0 {
		t.Errorf("the command line is %s, %v; the PID %d, the user %d", cmdline, err, os.Getpid(), os.Getuid())
	}
}

func TestTheResultIsThatOfTheProgram(t *testing.T) {
	result, err := runProgram(t, Machine{}, "fails")
	if err != nil || result.ExitCode != 3 || result.Output != "one line\nanother\n" {
		t.Errorf("it ended with %d, %v and printed %q", result.ExitCode, err, result.Output)
	}
	if !strings.Contains(result.KernelLog, "Linux version") {
		t.Errorf("the kernel's log is %q", result.KernelLog)
	}
	result, err = runProgram(t, Machine{}, "dies")
	if err != nil || result.ExitCode != 128+int(unix.SIGKILL) {
		t.Errorf("killed, it ended with %d, %v", result.ExitCode, err)
	}
}

func TestAMachineThatHangsIsEnded(t *testing.T) {
	const timeout = 10 * time.Second
	_, err := runProgram(t, Machine{Timeout: timeout}, "hangs")
	if err == nil || !strings.Contains(err.Error(), "has not ended within 10s") {
		t.Errorf("got %v", err)
	}
}

func TestAMachineThatDoesNotBeginIsAnError(t *testing.T) {
	_, err := runProgram(t, Machine{startTimeout: 100 * time.Millisecond}, "fails")
	if !errors.Is(err, errHung) {
		t.Errorf("got %v", err)
	}
}

func TestAModuleThatDoesNotExistIsAnError(t *testing.T) {
	_, err := runProgram(t, Machine{Modules: []string{"no-such-module"}}, "fails")
	if err == nil || !strings.Contains(err.Error(), "no module no-such-module") {
		t.Errorf("got %v", err)
	}
}

// TestARootOutlivesARestart has files of its own, NUMA nodes, and a program that restarts the machine.
func TestARootOutlivesARestart(t *testing.T) {
	if !Inside(t, Machine{
		Root: &Root{MiB: 64, Files: map[string]string{"/etc/given": "/etc/hostname"}}, CPUs: 4, NUMANodes: 2,
		Disks: []Disk{{MiB: 16, Format: []string{"mkfs.ext4", "-q"}}},
	}) {
		return
	}
	if given, err := os.ReadFile("/etc/given"); err != nil || len(given) == 0 {
		t.Errorf("the file of the root has %q, %v", given, err)
	}
	for path, want := range map[string]string{
		"/sys/devices/system/node/node0/cpulist": "0-1", "/sys/devices/system/node/node1/cpulist": "2-3",
		"/proc/sys/kernel/hostname": "machine", "/sys/block/vdb/size": "32768",
	} {
		if content, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(content)) != want {
			t.Errorf("%s is %q, %v, want %s", path, content, err, want)
		}
	}
	const path = "/var/starts"
	starts, err := os.ReadFile(path)
	if Start() == 1 {
		if !os.IsNotExist(err) {
			t.Fatalf("a new machine has %s: %v", path, err)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("one"), 0o600); err != nil {
			t.Fatal(err)
		}
		unix.Sync()
		Restart(t)
	}
	if Start() != 2 || string(starts) != "one" || err != nil {
		t.Errorf("start %d has %q, %v", Start(), starts, err)
	}
}
