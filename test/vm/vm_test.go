package vm

import (
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
	if os.Getenv(variable) != "" && len(os.Args) > 1 {
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

func TestAModuleThatDoesNotExistIsAnError(t *testing.T) {
	_, err := runProgram(t, Machine{Modules: []string{"no-such-module"}}, "fails")
	if err == nil || !strings.Contains(err.Error(), "no module no-such-module") {
		t.Errorf("got %v", err)
	}
}
