// Package rmtree removes directories of pods with their content, but never what is mounted there: the kernel keeps it
// from crossing a mount point, even one that is mounted in the meantime.
package rmtree

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// batch is the number of names to read at a time, so that a directory with a million files needs little memory.
const batch = 512

// All removes a file, or a directory with its content. A missing one is no error. A mount point fails with a
// *MountedError, and its content stays; links are removed and not followed.
func All(path string) error {
	parent, err := os.OpenFile(filepath.Dir(path), os.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }() // it was only read
	return remove(parent, filepath.Base(path), path)
}

// MountedError is the error of a mount point in a directory to remove.
type MountedError struct {
	// Path is the mount point.
	Path string
}

// Error implements error.
func (e *MountedError) Error() string {
	return fmt.Sprintf("%s is a mount point, and nothing below it is removed; unmount it", e.Path)
}

// remove removes an entry of a directory. path is its path for errors.
func remove(parent *os.File, name, path string) error {
	at := int(parent.Fd())
	err := unix.Unlinkat(at, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return &MountedError{Path: path}
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	refused := err
	fd, err := unix.Openat2(at, name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EXDEV):
		return &MountedError{Path: path}
	case errors.Is(err, unix.ENOTDIR): // a file that may not be removed
		return &os.PathError{Op: "remove", Path: path, Err: refused}
	case err != nil:
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	folder := os.NewFile(uintptr(fd), path)
	err = empty(folder, path)
	if err := errors.Join(err, folder.Close()); err != nil {
		return err
	}
	if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); errors.Is(err, unix.EBUSY) {
		return &MountedError{Path: path}
	} else if err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// empty removes the content of a directory. A failure does not prevent the removal of the rest.
func empty(folder *os.File, path string) error {
	for {
		names, err := folder.Readdirnames(batch)
		var errs []error
		for _, name := range names {
			errs = append(errs, remove(folder, name, filepath.Join(path, name)))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// Reading starts again from the beginning, because removals have moved the following entries.
		if _, err := folder.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}
