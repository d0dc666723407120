package bundle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/sharedmount"
)

// makeShared ensures that mounts below a directory propagate, which volumes with mount propagation need.
func makeShared(dir string, note func(string)) error {
	made, err := sharedmount.Make(dir)
	if err != nil {
		return fmt.Errorf("%w: mounting needs root and CAP_SYS_ADMIN; in a container run it privileged", err)
	}
	if made {
		note("the machine's mounts are private: " + dir + " is now a shared mount of its own")
	}
	return nil
}

// unmountBelow unmounts everything below a directory of the node, the newest mount first, except the disks of an
// administrator. It detaches a busy mount, which disappears with its last user.
func unmountBelow(l layout.Layout, dir string) error {
	state, err := filepath.EvalSymlinks(l.StateDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("resolving %s: %w", l.StateDir(), err)
	}
	below, err := filepath.Rel(l.StateDir(), dir)
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(state, below)))
	if err != nil {
		return fmt.Errorf("reading the mounts: %w", err)
	}
	var errs []error
	for _, mount := range slices.Backward(mounts) {
		if mount.Mountpoint == state || isDisk(state, mount) {
			continue
		}
		if err := unix.Unmount(mount.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", mount.Mountpoint, err))
		}
	}
	return errors.Join(errs...)
}

// isDisk reports whether an administrator has mounted a whole file system at one of the directories below the state
// directory for which that makes sense. The node has its own mounts elsewhere.
func isDisk(state string, mount *mountinfo.Info) bool {
	at, err := filepath.Rel(state, mount.Mountpoint)
	return err == nil && mount.Root == "/" &&
		slices.Contains([]string{"claims", "logs", "root", "runtime", "runtime/root"}, at)
}

// chooseSnapshotter returns overlayfs if a trial mount works. Otherwise it returns native, which copies whole images,
// and the reason.
func chooseSnapshotter(dir string) (name, why string) {
	if err := tryOverlay(dir); err != nil {
		return "native", fmt.Sprintf("overlayfs does not work in %s (%v): images are copied instead, which is slower "+
			"and takes more disk; put the state directory on ext4 or xfs for overlayfs", dir, err)
	}
	return "overlayfs", ""
}

func tryOverlay(parent string) (err error) {
	dir, err := os.MkdirTemp(parent, ".overlay-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, sub := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, sub), dirMode); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
	merged := filepath.Join(dir, "merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return err
	}
	return unix.Unmount(merged, 0)
}
