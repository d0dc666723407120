package pidlimit_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quartet-node/quartet/internal/pidlimit"
	"github.com/quartet-node/quartet/test/require"
)

// proc returns a /proc with these limits, of a process in a PID namespace.
func proc(t *testing.T, namespace string, pids, threads int) string {
	t.Helper()
	dir := t.TempDir()
	for name, n := range map[string]int{"sys/kernel/pid_max": pids, "sys/kernel/threads-max": threads} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, "%d\n", n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "self/ns"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(namespace, filepath.Join(dir, "self/ns/pid")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTheLeastLimitOfTheMachineCounts(t *testing.T) {
	const machine, own = "pid:[4026531836]", "pid:[4026532000]"
	for name, tc := range map[string]struct {
		saved, proc string
		want        int64
	}{
		"the machine's own":             {"", proc(t, machine, 32768, 192730), 32768},
		"threads are fewer":             {"", proc(t, machine, 4194304, 192730), 192730},
		"a container, prepared":         {proc(t, machine, 32768, 192730), proc(t, own, 4194304, 192730), 32768},
		"a container with less itself":  {proc(t, machine, 32768, 192730), proc(t, own, 400, 192730), 400},
		"a container, not prepared":     {"", proc(t, own, 4194304, 192730), 192730},
		"saved in a container":          {proc(t, own, 300, 192730), proc(t, own, 4194304, 192730), 192730},
		"the machine's, changed since":  {proc(t, machine, 32768, 192730), proc(t, machine, 65536, 192730), 65536},
		"saved, a container, and again": {proc(t, machine, 65536, 192730), proc(t, own, 4194304, 192730), 65536},
	} {
		state := t.TempDir()
		if tc.saved != "" {
			if err := pidlimit.Save(tc.saved, state); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := pidlimit.Read(tc.proc, state); err != nil || got != tc.want {
			t.Errorf("%s: got %d (%v), want %d", name, got, err, tc.want)
		}
	}
}

func TestADamagedFileIsAnError(t *testing.T) {
	state := t.TempDir()
	if err := os.WriteFile(filepath.Join(state, "machine-pid-max"), []byte("many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pidlimit.Read(
		proc(t, "pid:[1]", 1000, 1000),
		state,
	); err == nil ||
		!strings.Contains(err.Error(), "machine-pid-max") {
		t.Errorf("Read() error = %v, want an error with %q", err, "machine-pid-max")
	}
}

func TestRunningProcesses(t *testing.T) {
	proc := t.TempDir()
	for text, want := range map[string]int64{
		"0.51 0.60 0.44 2/317 4711\n": 317, "": 0, "1 2 3": 0, "1 2 3 4 5": 0, "1 2 3 4/x": 0,
	} {
		if err := os.WriteFile(filepath.Join(proc, "loadavg"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := pidlimit.Running(proc); n != want || (err == nil) != (want > 0) {
			t.Errorf("%q is read as %d, %v, want %d", text, n, err, want)
		}
	}
}

// A real process in a PID namespace of its own reads the machine's limit.
func TestAProcessInANamespaceOfItsOwn(t *testing.T) {
	const env = "QUARTET_TEST_PID_STATE"
	if state := os.Getenv(env); state != "" {
		n, err := pidlimit.Read("/proc", state)
		fmt.Println("limit:", n, err)
		return
	}
	require.Root(t, "a PID namespace")
	state := t.TempDir()
	if err := pidlimit.Save("/proc", state); err != nil {
		t.Fatal(err)
	}
	want, err := pidlimit.Read("/proc", state)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), env+"="+state)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf("limit: %d <nil>", want)) {
		t.Errorf("want the machine's limit %d: %v: %s", want, err, out)
	}
}
