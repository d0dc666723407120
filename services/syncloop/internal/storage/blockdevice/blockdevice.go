// Package blockdevice gives pods block devices as the kubelet does: a device is mounted at a path of the node, and held
// with a loop device as long as the pod has it, so that no other device gets its number meanwhile. Both outlive the
// process, and are found and undone from the path alone.
package blockdevice

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The modes of what is created.
const (
	folderMode = 0o750
	fileMode   = 0o640
)

// Mounted reports whether something is mounted at a path, which may be missing.
type Mounted func(path string) (bool, error)

// Link makes a link to a device, which need not exist yet, unless it is there.
func Link(device, link string) error {
	if to, err := os.Readlink(link); err == nil && to == device {
		return nil
	}
	if err := remove(link); err != nil {
		return err
	}
	return os.Symlink(device, link)
}

// Hold mounts a device at a path, and holds it. It completes what is incomplete.
func Hold(device, path string, mounted Mounted) error {
	is, err := mounted(path)
	if err != nil {
		return err
	}
	if !is {
		if err := os.MkdirAll(filepath.Dir(path), folderMode); err != nil {
			return err
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, fileMode)
		if err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
		if err := unix.Mount(device, path, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "mount", Path: path, Err: err}
		}
	}
	return holdDevice(path)
}

// Release undoes Hold. A missing path is no error.
func Release(path string, mounted Mounted) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := releaseDevice(path); err != nil {
		return err
	}
	is, err := mounted(path)
	if err != nil {
		return err
	}
	if is {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
	return remove(path)
}

// remove removes a file or an empty directory, which may be missing.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
