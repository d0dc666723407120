// Package sharedmount makes a directory a shared mount, so that mounts below it propagate. Volumes with mount
// propagation need that, and so do recursive read-only mounts. systemd makes every mount shared at boot; on other
// machines the directory becomes its own shared mount. `quartet up` uses it for the state directory, and syncloop for
// the directory of the pods' volumes.
package sharedmount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/machine"
)

// Make ensures that a directory is on a shared mount, and reports whether it had to create one. It is idempotent, even
// after an interrupted call. The error is unix.EPERM if the process may not mount.
func Make(dir string) (made bool, err error) {
	dir, at, bound, err := look(dir)
	if err != nil {
		return false, err
	}
	if machine.IsShared(at) {
		return false, nil
	}
	if !bound { // with what an administrator has mounted below
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return false, fmt.Errorf("binding %s to itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return false, fmt.Errorf("making the mount %s shared: %w", dir, err)
	}
	return true, nil
}

// Undo removes the mount that Make has created. It fails with unix.EBUSY while something is mounted below it that was
// not there before. Files that are open below it stay open, because the directory itself is the same with and without
// the mount. It is a no-op for a directory without such a mount.
func Undo(dir string) error {
	dir, _, bound, err := look(dir)
	if errors.Is(err, os.ErrNotExist) || (err == nil && !bound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unmount(dir); err != nil {
		return fmt.Errorf("unmounting %s: %w", dir, err)
	}
	return nil
}

// unmount unmounts a directory, and detaches it if only open files and mounts of before keep it busy.
func unmount(dir string) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	switch below, lookErr := mountsBelow(dir); {
	case lookErr != nil:
		return lookErr
	case below:
		return err
	}
	return unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
}

// mountsBelow reports whether something is mounted below a directory that is bind-mounted on itself. What is mounted at
// the same path below the covered directory, too, does not count: it was there before, and stays.
func mountsBelow(dir string) (bool, error) {
	mounts, err := mountsOf(mountinfo.PrefixFilter(dir))
	if err != nil {
		return false, err
	}
	parents, top := map[int]int{}, 0
	for _, m := range mounts {
		if parents[m.ID] = m.Parent; m.Mountpoint == dir {
			top = m.ID // the last one covers the others
		}
	}
	isAbove := func(m *mountinfo.Info) bool {
		id, known := m.ID, true
		for known && id != top {
			id, known = parents[id]
		}
		return known
	}
	return slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool {
		if m.Mountpoint == dir || !isAbove(m) {
			return false
		}
		return !slices.ContainsFunc(mounts, func(before *mountinfo.Info) bool {
			return before.Mountpoint == m.Mountpoint && before.Major == m.Major && before.Minor == m.Minor &&
				before.Root == m.Root && !isAbove(before)
		})
	}), nil
}

// mountsOf returns the mounts of this thread's mount namespace that pass a filter. It reads the file of the thread and
// not of the process: a command in a container inspects the machine from a thread that has entered its namespaces.
func mountsOf(filter mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
	file, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	mounts, err := mountinfo.GetMountsFromReader(file, filter)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	return mounts, nil
}

// look returns the mount that contains a directory. bound is true if the directory is bind-mounted on itself.
func look(path string) (dir string, at *mountinfo.Info, bound bool, err error) {
	if dir, err = filepath.EvalSymlinks(path); err != nil {
		return "", nil, false, fmt.Errorf("resolving %s: %w", path, err)
	}
	id := mountID(dir)
	mounts, err := mountsOf(until(id, dir))
	if err != nil {
		return "", nil, false, err
	}
	byID := map[int]*mountinfo.Info{}
	for _, mount := range mounts {
		byID[mount.ID] = mount
		// Among mounts on one point the last counts, because it covers the others.
		if at == nil || len(mount.Mountpoint) >= len(at.Mountpoint) {
			at = mount
		}
	}
	if known := byID[id]; known != nil {
		at = known
	}
	if at == nil {
		return "", nil, false, fmt.Errorf("/proc/thread-self/mountinfo shows no mount of %s", dir)
	}
	below := byID[at.Parent]
	if at.Mountpoint != dir || below == nil || at.Major != below.Major || at.Minor != below.Minor {
		return dir, at, false, nil
	}
	rel, err := filepath.Rel(below.Mountpoint, dir)
	return dir, at, err == nil && at.Root == filepath.Join(below.Root, rel), nil
}

// mountID returns the ID of the mount that contains a directory; 0 if the kernel does not say it, as before Linux 5.8.
func mountID(dir string) int {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &stat)
	if err != nil || stat.Mask&unix.STATX_MNT_ID == 0 {
		return 0
	}
	return int(stat.Mnt_id) //nolint:gosec // the kernel's IDs of mounts in mountinfo are ints
}

// until returns a filter for the mounts that may contain a directory. It ends the reading at the mount with an ID, or,
// if that is on the directory itself, when the one below it is known, too. A table with many pods is long, and most of
// it is theirs.
func until(id int, dir string) mountinfo.FilterFunc {
	contains := mountinfo.ParentsFilter(dir)
	seen, found, below := map[int]bool{}, false, 0
	return func(m *mountinfo.Info) (skip, stop bool) {
		if skip, _ = contains(m); skip {
			return true, false
		}
		seen[m.ID] = true
		if m.ID == id {
			found, below = true, m.Parent
			if m.Mountpoint != dir {
				return false, true
			}
		}
		return false, found && seen[below]
	}
}
