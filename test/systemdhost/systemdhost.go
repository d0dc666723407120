// Package systemdhost gives tests a real systemd, on machines without a running one: it starts the installed systemd as
// the first process of namespaces of its own, with the test as one of its services, and leaves nothing behind.
//
//	if !systemdhost.Inside() {
//		systemdhost.Run(t) // this test, in a process of its own
//		return
//	}
//	// Here /run/systemd/private answers, and units that are put into systemdhost.Units can be started.
//
// Inside, the machine's files are read-only; /run and /dev are separate, TMPDIR is in /run, and the only cgroups are
// those that were created for it, of the machine's cgroup version. There is no network, no unit of the machine, no
// journal, and no message bus and no logind except those of StartLogind. When a test is killed, everything ends with
// it. Only these cgroups stay, and they are empty.
//
// Boot starts a Machine instead: a systemd that a test drives from outside, with writable files and a network. Connect
// connects two of them.
//
// A test skips with the reason when the machine lacks something that it needs; with CI=true it fails instead.
package systemdhost

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
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
	// unitPath is systemd's search path for units inside. As on a machine it includes the directories of units and
	// properties that are set by calls, but not those of the machine's units.
	unitPath = "/run/systemd/system.control:/run/systemd/transient:" + Units
	// program is the path of systemd.
	program = "/lib/systemd/systemd"
	// variable is the environment variable with the path of the test's program, inside and for the scripts.
	variable = "QUARTET_SYSTEMD_PROGRAM"
	// timeout bounds a whole run. systemd is up in less than a second, the longest test inside takes 25 s on two cores.
	timeout = 6 * time.Minute
	// logTail is the number of bytes of systemd's log that a failed test shows.
	logTail = 8 << 10
	// unitLogTail is the same for a unit's log.
	unitLogTail = 64 << 10
	// cgroupRoot is the mount point of the machine's cgroups.
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

// Inside reports whether the test runs in an environment of Run.
func Inside() bool { return os.Getenv(variable) != "" }

// Run runs this test again inside, and takes over its result: it fails when that fails and skips when that skips.
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

// missing returns an error that names what the machine lacks.
func missing() error {
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("%w: apt-get install systemd", err)
	}
	for _, command := range []string{"unshare", "pivot_root", "mount", "umount", "stat"} {
		if _, err := exec.LookPath(command); err != nil {
			return fmt.Errorf("%w: it is in util-linux or coreutils", err)
		}
	}
	return nil
}

// fill writes the files that the scripts expect into the directory that the machine and the inside share.
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

// writeUnits writes unit files.
func (h *host) writeUnits(t testing.TB, units map[string]string) {
	t.Helper()
	for name, content := range units {
		if err := os.WriteFile(filepath.Join(h.dir, "units", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// targets returns the targets on which every unit depends by default. They are empty.
func targets() map[string]string {
	units := map[string]string{}
	for _, name := range []string{"sysinit", "basic", "shutdown", "multi-user"} {
		units[name+".target"] = "[Unit]\nDefaultDependencies=no\n"
	}
	return units
}

// unit returns the service that runs the test. systemd ends with it, and with its exit code. It has the environment of
// this process: systemd has it too, and passes on the listed variables.
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

// escape escapes a path for a unit file.
func escape(path string) string { return strings.ReplaceAll(path, "%", "%%") }

// host is one systemd.
type host struct {
	// dir is the directory that it shares with the machine.
	dir string
	// name is the name of its cgroups, at the root of each of hierarchies.
	name        string
	hierarchies []string
}

// makeCgroups creates a cgroup in each mounted hierarchy of the machine.
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
			require.NoError(t, fmt.Errorf("the cgroups of this machine are not writable: %w", err))
		}
		h.hierarchies = append(h.hierarchies, mount.Mountpoint)
		// A new cgroup of cgroup v1 has no processors and no memory, so it accepts no process until they are set.
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

// removeCgroups removes the cgroups of makeCgroups with their children. They have no processes any more.
func (h *host) removeCgroups(t testing.TB) {
	t.Helper()
	// The last processes may take seconds to end on a busy machine: until then their cgroup cannot be removed.
	deadline := time.Now().Add(cgroupsTimeout)
	if err := h.thaw(); err != nil {
		t.Logf("systemdhost: thaw the cgroups: %v", err) // what stays frozen fails the removal
	}
	for _, hierarchy := range h.hierarchies {
		err := cgroups.RemovePath(filepath.Join(hierarchy, h.name))
		for err != nil && time.Now().Before(deadline) {
			<-time.After(poll)
			err = cgroups.RemovePath(filepath.Join(hierarchy, h.name))
		}
		if err != nil {
			t.Errorf("systemdhost: %v%s", err, processesIn(filepath.Join(hierarchy, h.name)))
		}
	}
}

// thaw lets frozen processes end. A runtime that is killed while it changes a container leaves it frozen, and the
// freezer of cgroup v1 also keeps a process that is killed.
func (h *host) thaw() error {
	thaw := func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "freezer.state" {
			err = os.WriteFile(path, []byte("THAWED"), 0o600)
		}
		if gone(err) {
			return nil
		}
		return err
	}
	var errs []error
	for _, hierarchy := range h.hierarchies {
		errs = append(errs, filepath.WalkDir(filepath.Join(hierarchy, h.name), thaw))
	}
	return errors.Join(errs...)
}

// gone reports whether a cgroup is removed already: its files say ENODEV for a moment.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) }

// processesIn describes the processes in a cgroup and its children, a line for each.
func processesIn(cgroup string) string {
	var lines strings.Builder
	pids, err := cgroups.GetAllPids(cgroup)
	if err != nil {
		fmt.Fprintf(&lines, "\n%v", err)
	}
	for _, pid := range pids {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		fmt.Fprintf(&lines, "\n%d: %s %v", pid, status, err)
	}
	return lines.String()
}

// start starts systemd and waits until it has ended, with the exit code of the test. Its error has the output of the
// scripts.
func (h *host) start(self string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	args := append([]string{"-euc", enter, "enter", h.name, h.dir, "unit=test.service\n" + inside + become}, h.hierarchies...)
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Env = append(os.Environ(), variable+"="+self, "container=quartet",
		"SYSTEMD_UNIT_PATH="+unitPath, "SYSTEMD_GENERATOR_PATH=/run/systemd/none", "SYSTEMD_LOG_TARGET=kmsg", "SYSTEMD_LOG_LEVEL=info")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = 5 * time.Second // after this time its output is closed
	// A test that is killed takes it along: Pdeathsig refers to the thread that has started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("it did not end within %v", timeout)
		}
		return fmt.Errorf("systemd: %w\n%s", err, output.String())
	}
	return nil
}

// log returns the end of systemd's log.
func (h *host) log() string {
	log, err := os.ReadFile(filepath.Join(h.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-logTail):])
}
