package systemdhost_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/test/require"
	"github.com/quartet-node/quartet/test/systemdhost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// systemctl runs systemctl inside and returns its output.
func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestASystemdOfTheTestsOwn(t *testing.T) {
	if !systemdhost.Inside() {
		systemdhost.Run(t)
		nothingIsLeft(t)
		return
	}
	if name, err := os.ReadFile("/proc/1/comm"); err != nil || string(name) != "systemd\n" {
		t.Errorf("the first process is %q: %v, want %q", name, err, "systemd\n")
	}
	// The machine's units and files are not visible or not writable.
	if err := os.WriteFile("/etc/quartet-systemd", nil, 0o600); err == nil {
		t.Error("a file of the machine can be written: /etc/quartet-systemd")
	}
	if state := systemctl(t, "show", "--property=LoadState", "--value", "ssh.service"); state != "not-found" {
		t.Errorf("a unit of the machine is %s, want %q", state, "not-found")
	}
	// The processes of a unit are in a cgroup of the machine's cgroup version.
	unit := "[Service]\nType=exec\nExecStart=sleep 600\nMemoryMax=64M\n"
	if err := os.WriteFile(filepath.Join(systemdhost.Units, "a.service"), []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	systemctl(t, "start", "a.service")
	pid := systemctl(t, "show", "--property=MainPID", "--value", "a.service")
	cgroup, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil || !strings.Contains(string(cgroup), ":/system.slice/a.service") {
		t.Errorf("the service is in %q: %v, want text with %q", cgroup, err, ":/system.slice/a.service")
	}
}

// nothingIsLeft checks that all files and cgroups of the inside are removed.
func nothingIsLeft(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		left, err := filepath.Glob(fmt.Sprintf("%s/quartet-systemd-%d-*", dir, os.Getpid()))
		if err != nil || len(left) > 0 {
			t.Errorf("left: %q %v, want none", left, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), t.Name()) {
		t.Errorf("mounts are left: %v", err)
	}
}

// TestOutcome ends as its environment requires, inside; the next test runs it.
func TestOutcome(t *testing.T) {
	outcome := os.Getenv("QUARTET_TEST_OUTCOME")
	if outcome != "" && !systemdhost.Inside() {
		systemdhost.Run(t)
		return
	}
	switch outcome {
	case "fails":
		t.Error("it fails inside")
	case "skips":
		t.Skip("it skips inside")
	}
}

func TestTheOutcomeIsThatOfInside(t *testing.T) {
	require.Root(t, "systemd in namespaces of its own")
	for outcome, want := range map[string]string{"passes": "\n--- PASS: TestOutcome", "fails": ": it fails inside", "skips": "\n--- SKIP: TestOutcome"} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^TestOutcome$")
			cmd.Env = append(os.Environ(), "QUARTET_TEST_OUTCOME="+outcome)
			out, err := cmd.CombinedOutput()
			if failed := err != nil; failed != (outcome == "fails") || !strings.Contains(string(out), want) {
				t.Errorf("CombinedOutput() error = %v\n%s\nwant failed %v and with %q", err, out, outcome == "fails", want)
			}
		})
	}
}
