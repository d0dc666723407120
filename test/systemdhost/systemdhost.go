// Package systemdhost gives tests a real systemd, on machines that have none: it starts the systemd that is installed as the
// first process of namespaces of its own, with the test as a service of it, and leaves nothing behind.
//
//	if !systemdhost.Inside() {
//		systemdhost.Run(t) // this test, in a process of its own
//		return
//	}
//	// Here /run/systemd/private answers, and units that are put into systemdhost.Units can be started.
//
// Inside, the machine's files are read-only; /run and /dev are of its own, TMPDIR is in /run, and of the cgroups there are
// those that were made for it alone, of the version that the machine has. There is no network, no unit of the machine, no
// journal, and no message bus and no logind but those of StartLogind. A test that is ended by force takes it all along, but for these cgroups, then empty.
//
// Boot starts a Machine instead: a systemd that a test drives from outside, with files that can be written and a network. Connect
// joins two of them.
//
// What a test needs and the machine lacks makes the test skip with the reason; with CI=true it fails instead.
package systemdhost

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"

	"github.com/quartet-node/quartet/test/require"
)

const (
	// Units is the directory of systemd's units inside.
	Units = "/run/systemd/system"
	// unitPath is where systemd looks for units inside: also for those that it is told of by calls, and for their properties,
	// as it does on a machine, but not for those of the machine.
	unitPath = "/run/systemd/system.control:/run/systemd/transient:" + Units
	// program is the systemd that is started.
	program = "/lib/systemd/systemd"
	// variable names, inside and for the scripts, the program that the test is.
	variable = "QUARTET_SYSTEMD_PROGRAM"
	// timeout bounds it all. systemd is up in less than a second, the longest test inside takes 25 s on two cores.
	timeout = 6 * time.Minute
	// logTail is how much of systemd's log a failed test shows, in bytes.
	logTail = 8 << 10
	// unitLogTail is the same of a unit's log.
	unitLogTail = 64 << 10
	// cgroupRoot is where the machine's cgroups are.
	cgroupRoot = "/sys/fs/cgroup"
)

var (
	//go:embed enter.sh
	enter string
	//go:embed inside.sh
	inside string
	//go:embed machine.sh
	machine string
	//go:embed become.sh
	become string
)

// Inside tells whether the test runs in what Run has started.
func Inside() bool { return os.Getenv(variable) != "" }

// Run runs this test again inside, and has its result: it fails when that fails and skips when that skips.
func Run(t testing.TB) {
	t.Helper()
	require.Root(t, "systemd in namespaces of its own")
	require.NoError(t, missing())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dir: t.TempDir(), name: fmt.Sprintf("quartet-systemd-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "_"))}
	h.fill(t)
	units := targets()
	units["test.service"] = unit(self, t.Name(), os.Environ())
	h.writeUnits(t, units)
	defer h.removeCgroups(t)
	h.makeCgroups(t)

	ended := h.start(self)
	out, err := os.ReadFile(filepath.Join(h.dir, "output"))
	ended = errors.Join(ended, err)
	t.Logf("systemdhost: inside:\n%s", out)
	if ended == nil && bytes.Contains(out, []byte("--- SKIP: "+t.Name()+" ")) {
		t.Skip("systemdhost: the test has skipped inside")
	}
	if ended == nil && !bytes.Contains(out, []byte("--- PASS: "+t.Name()+" ")) {
		ended = errors.New("the test did not run")
	}
	if ended != nil {
		t.Fatalf("systemdhost: %v\n%s", ended, h.log())
	}
}

// missing is what the machine lacks.
func missing() error {
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("%w: apt-get install systemd", err)
	}
	for _, command := range []string{"unshare", "pivot_root", "mount", "umount", "stat"} {
		if _, err := exec.LookPath(command); err != nil {
			return fmt.Errorf("%w: it is of util-linux or coreutils", err)
		}
	}
	return nil
}

// fill fills the directory that the machine and the inside both have with what the scripts expect.
func (h *host) fill(t testing.TB) {
	t.Helper()
	if err := errors.Join(
		os.Mkdir(filepath.Join(h.dir, "root"), 0o755),
		os.Mkdir(filepath.Join(h.dir, "units"), 0o755),
		os.WriteFile(filepath.Join(h.dir, "log"), nil, 0o600),
		os.WriteFile(filepath.Join(h.dir, "output"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
}

// writeUnits puts units into place.
func (h *host) writeUnits(t testing.TB, units map[string]string) {
	t.Helper()
	for name, content := range units {
		if err := os.WriteFile(filepath.Join(h.dir, "units", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// targets are those that every unit is ordered by unless it says otherwise. There is nothing in them.
func targets() map[string]string {
	units := map[string]string{}
	for _, name := range []string{"sysinit", "basic", "shutdown", "multi-user"} {
		units[name+".target"] = "[Unit]\nDefaultDependencies=no\n"
	}
	return units
}

// unit is the service that the test is inside. With it systemd ends, with its exit code. It has the environment of this
// process: systemd, which has it too, passes on what is named.
func unit(self, test string, env []string) string {
	names := make([]string, 0, len(env))
	for _, entry := range env {
		if name, _, _ := strings.Cut(entry, "="); name != "TMPDIR" {
			names = append(names, name)
		}
	}
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + part + "$"
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	return strings.Join([]string{
		"[Unit]", "DefaultDependencies=no", "SuccessAction=exit-force", "FailureAction=exit-force",
		"[Service]", "Type=exec", "WorkingDirectory=" + escape(dir),
		"StandardOutput=file:/run/share/output", "StandardError=inherit",
		"PassEnvironment=" + variable + " " + strings.Join(names, " "), "Environment=TMPDIR=/run/tmp",
		fmt.Sprintf(`ExecStart="%s" -test.v -test.count=1 "-test.run=%s"`, escape(self), strings.ReplaceAll(strings.Join(parts, "/"), "$", "$$")),
	}, "\n") + "\n"
}

// escape writes a path so that systemd reads it as it is.
func escape(path string) string { return strings.ReplaceAll(path, "%", "%%") }

// host is one systemd.
type host struct {
	// dir is the directory that it shares with the machine.
	dir string
	// name is that of its cgroups, at the root of each of hierarchies.
	name        string
	hierarchies []string
}

// makeCgroups makes a cgroup in each hierarchy that the machine has mounted.
func (h *host) makeCgroups(t testing.TB) {
	t.Helper()
	table, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range table {
		if mount.Mountpoint != cgroupRoot && filepath.Dir(mount.Mountpoint) != cgroupRoot {
			continue
		}
		if err := os.Mkdir(filepath.Join(mount.Mountpoint, h.name), 0o755); err != nil {
			require.NoError(t, fmt.Errorf("the cgroups of this machine cannot be written: %w", err))
		}
		h.hierarchies = append(h.hierarchies, mount.Mountpoint)
		// A new cgroup of cgroup v1 has no processors and no memory, and so takes no process, until it is given them.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			all, err := os.ReadFile(filepath.Join(mount.Mountpoint, file))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err := errors.Join(err, os.WriteFile(filepath.Join(mount.Mountpoint, h.name, file), all, 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(h.hierarchies) == 0 {
		require.NoError(t, errors.New("no cgroups are mounted at "+cgroupRoot))
	}
}

// removeCgroups removes what makeCgroups has made, with what systemd has left in it. Nothing runs in them any more.
func (h *host) removeCgroups(t testing.TB) {
	t.Helper()
	for _, hierarchy := range h.hierarchies {
		if err := cgroups.RemovePath(filepath.Join(hierarchy, h.name)); err != nil {
			t.Errorf("systemdhost: %v", err)
		}
	}
}

// start starts systemd and waits until it has ended, with the exit code of the test. Its error has what the scripts say.
func (h *host) start(self string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	args := append([]string{"-euc", enter, "enter", h.name, h.dir, "unit=test.service\n" + inside + become}, h.hierarchies...)
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Env = append(os.Environ(), variable+"="+self, "container=quartet",
		"SYSTEMD_UNIT_PATH="+unitPath, "SYSTEMD_GENERATOR_PATH=/run/systemd/none", "SYSTEMD_LOG_TARGET=kmsg", "SYSTEMD_LOG_LEVEL=info")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = 5 * time.Second // after which what holds its output is let go
	// A test that is ended by force takes it along. The kernel looks at the thread that has started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("it did not end within %v", timeout)
		}
		return fmt.Errorf("systemd: %w\n%s", err, said.String())
	}
	return nil
}

// log is the end of systemd's log.
func (h *host) log() string {
	log, err := os.ReadFile(filepath.Join(h.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-logTail):])
}
