package subpath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Machine is the Mounter of a node.
type Machine struct{}

// Mounted implements Mounter.
func (Machine) Mounted(target string) (bool, error) {
	parent, err := unix.Open(filepath.Dir(target), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "open", Path: filepath.Dir(target), Err: err}
	}
	defer func() { _ = unix.Close(parent) }() // it is only a location
	fd, err := unix.Openat2(parent, filepath.Base(target), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV,
	})
	switch {
	case err == nil:
		return false, unix.Close(fd)
	case errors.Is(err, unix.EXDEV): // the kernel does not cross mount points
		return true, nil
	case errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, &os.PathError{Op: "open", Path: target, Err: err}
}

// Bind implements Mounter. As the kubelet, it does not include mounts below.
func (Machine) Bind(source *os.File, target string) error {
	// The link leads to the open file, even if its path has changed.
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", source.Fd()), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source.Name(), target, err)
	}
	return nil
}

// Detach implements Mounter. It does not wait for a hanging file system.
func (m Machine) Detach(target string) error {
	// The mount is made private first: otherwise unmounting below a shared mount would propagate to other places,
	// including the volume itself.
	err := unix.Mount("", target, "", unix.MS_PRIVATE|unix.MS_REC, "")
	if err == nil {
		err = unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if err == nil {
		return nil
	}
	if mounted, unknown := m.Mounted(target); unknown == nil && !mounted {
		return nil // it was unmounted in the meantime
	}
	return &os.PathError{Op: "unmount", Path: target, Err: err}
}
