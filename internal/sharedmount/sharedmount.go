// Package sharedmount makes a directory pass on what is mounted below it. Volumes with mount propagation need that, and so do
// recursive read-only mounts. systemd makes every mount shared at boot; on other machines the directory becomes a shared mount of
// its own. `quartet up` does so for the state directory, and syncloop for the directory of the pods' volumes.
package sharedmount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/machine"
)

// Make sees to it that a directory lies on a shared mount, and tells whether it had to make one. It can be called again, also
// after a process was killed in the middle. The error is unix.EPERM for who may not mount.
func Make(dir string) (made bool, err error) {
	dir, at, bound, err := look(dir)
	if err != nil {
		return false, err
	}
	if machine.IsShared(at) {
		return false, nil
	}
	if !bound {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return false, fmt.Errorf("binding %s to itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return false, fmt.Errorf("making the mount %s shared: %w", dir, err)
	}
	return true, nil
}

// Undo removes the mount that Make has made of a directory. It fails with unix.EBUSY while something is mounted or open below
// it. A directory that is no such mount is left alone.
func Undo(dir string) error {
	dir, _, bound, err := look(dir)
	if errors.Is(err, os.ErrNotExist) || (err == nil && !bound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmounting %s: %w", dir, err)
	}
	return nil
}

// look finds the mount that a directory lies in. It is bound when the mount is the directory itself, bound to itself.
func look(path string) (dir string, at *mountinfo.Info, bound bool, err error) {
	if dir, err = filepath.EvalSymlinks(path); err != nil {
		return "", nil, false, fmt.Errorf("resolving %s: %w", path, err)
	}
	// The thread's, not the process's: a command in a container looks at the machine from a thread that has entered it.
	file, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return "", nil, false, fmt.Errorf("reading the mounts: %w", err)
	}
	mounts, err := mountinfo.GetMountsFromReader(file, mountinfo.ParentsFilter(dir))
	if err := errors.Join(err, file.Close()); err != nil {
		return "", nil, false, fmt.Errorf("reading the mounts: %w", err)
	}
	byID := map[int]*mountinfo.Info{}
	for _, mount := range mounts {
		byID[mount.ID] = mount
		// Among mounts on one point the last counts, because it covers the others.
		if at == nil || len(mount.Mountpoint) >= len(at.Mountpoint) {
			at = mount
		}
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
