package persistentvolumes

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"k8s.io/mount-utils"
)

// killDelay is how long an ended umount(8) may keep its output open.
const killDelay = time.Second

// nfsMounter mounts by the programs of the node. It unmounts itself, because mount-utils waits without a limit for
// umount.nfs(8), which hangs while the server is away.
type nfsMounter struct{}

// mountTable is the mount table of this process.
const mountTable = "/proc/mounts"

// nodeMounter returns the mounter of mount-utils that runs the programs of the node. It is made at its first use,
// because that runs umount(8), for which the start of the process would wait.
var nodeMounter = sync.OnceValue(func() mount.Interface { return mount.NewWithoutSystemd("") })

// MountSensitiveWithoutSystemd implements NFSMounter.
func (nfsMounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return nodeMounter().MountSensitiveWithoutSystemd(source, target, fstype, options, sensitive)
}

// List implements NFSMounter.
func (nfsMounter) List() ([]mount.MountPoint, error) { return mount.ListProcMounts(mountTable) }

// UnmountWithForce implements NFSMounter. It takes at most twice the timeout. The kernel may still be about to end the
// connections of the file system when it returns.
func (m nfsMounter) UnmountWithForce(target string, timeout time.Duration) error {
	err := unmountWithin(timeout, target)
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	// The kernel first takes the mount out of its table, and then waits for the server.
	if mounts, err := mountsAt(m, target); err != nil || len(mounts) == 0 {
		return err
	}
	return unmountWithin(timeout, "-f", target)
}

// unmountWithin runs umount(8). After the timeout it kills it with its helpers, and returns
// context.DeadlineExceeded.
func unmountWithin(timeout time.Duration, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "umount", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killDelay
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("umount %v has not ended within %v: %w", args, timeout, ctx.Err())
	case err != nil:
		return fmt.Errorf("umount %v: %w: %s", args, err, out)
	default:
		return nil
	}
}

// lister returns all mounts.
type lister interface {
	List() ([]mount.MountPoint, error)
}

// mountsAt returns what is mounted at a directory, from the mount table.
func mountsAt(l lister, dir string) (sources []string, err error) {
	all, err := l.List()
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	for _, one := range all {
		if one.Path == dir {
			sources = append(sources, one.Device)
		}
	}
	return sources, nil
}
