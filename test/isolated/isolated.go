// Package isolated runs a command as on a machine without a node: for measurements and suites that run a kubelet, whose
// paths cannot all be moved.
package isolated

import (
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
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
)

const (
	// cgroupRoot is the mount point of the machine's cgroups.
	cgroupRoot = "/sys/fs/cgroup"
	// Address is the address of the only interface besides loopback. Its network leads nowhere.
	Address = "192.0.2.2"
	// Goodbye is the time that an interrupted command has to write its results.
	Goodbye = 30 * time.Second
)

// directories are the directories that each run has for itself. A kubelet always uses the first one.
var directories = []string{"/var/lib/kubelet", "/var/log/pods", "/var/log/containers", "/var/lib/quartet", "/run/quartet"}

var (
	//go:embed enter.sh
	enterScript string
	//go:embed inside.sh
	insideScript string
)

// CannotRun returns an error that names the commands that the machine lacks; nil when it has them.
func CannotRun() error {
	var errs []error
	for _, command := range []string{"unshare", "busybox"} {
		if _, err := exec.LookPath(command); err != nil {
			errs = append(errs, fmt.Errorf("%w: apt-get install util-linux busybox-static", err))
		}
	}
	return errors.Join(errs...)
}

// Run runs a command with process ids, mounts, a network, cgroups and directories of its own. dir is an empty directory
// for it, whose name is also that of its cgroups. A run needs no free port, does not interfere with a node of the
// machine, and leaves only empty directories behind, however it ends.
func Run(ctx context.Context, dir string, command ...string) (err error) {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	name := filepath.Base(dir)
	defer func() {
		for _, hierarchy := range hierarchies {
			err = errors.Join(err, cgroups.RemovePath(filepath.Join(hierarchy, name)))
		}
	}()
	for _, hierarchy := range hierarchies {
		if err := makeCgroup(hierarchy, name); err != nil {
			return err
		}
	}
	// The directories stay, because with the removal of one the kernel would remove the mounts of another run on it.
	for _, path := range directories {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}

	args := append([]string{"-euc", enterScript, "enter", name, dir, insideScript}, command...)
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Env = append(os.Environ(), "ADDRESS="+Address, "HIERARCHIES="+strings.Join(hierarchies, " "), "DIRECTORIES="+strings.Join(directories, " "))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// A terminal sends its interrupt to the command, too. A command that does not end is killed with its namespaces.
	cmd.Cancel = func() error { return nil }
	cmd.WaitDelay = Goodbye
	// Pdeathsig refers to the thread that has started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

// cgroupHierarchies returns the mount points of the machine's cgroups.
func cgroupHierarchies() ([]string, error) {
	table, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, mount := range table {
		if mount.Mountpoint == cgroupRoot || filepath.Dir(mount.Mountpoint) == cgroupRoot {
			all = append(all, mount.Mountpoint)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no cgroups are mounted at %s", cgroupRoot)
	}
	return all, nil
}

// makeCgroup creates a cgroup at the root of a hierarchy. One of cgroup v1 accepts no process until it has processors
// and memory.
func makeCgroup(hierarchy, name string) error {
	if err := os.Mkdir(filepath.Join(hierarchy, name), 0o755); err != nil {
		return err
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		all, err := os.ReadFile(filepath.Join(hierarchy, file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := errors.Join(err, os.WriteFile(filepath.Join(hierarchy, name, file), all, 0)); err != nil {
			return err
		}
	}
	return nil
}
