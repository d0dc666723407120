package statedir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// damagedSuffix is the suffix of a damaged file. Only the last one of a path is kept.
const damagedSuffix = ".damaged"

// DamagedError is the error of a file without valid content.
type DamagedError struct {
	// Path is the file, and Aside its new path; Aside is empty if the file could not be renamed.
	Path, Aside string
	err         error
}

// Error returns the reason, and where the file is now.
func (e *DamagedError) Error() string {
	if e.Aside == "" {
		return e.Path + " is damaged: " + e.err.Error()
	}
	return fmt.Sprintf("%s is damaged and is now %s: %v", e.Path, e.Aside, e.err)
}

// Now returns the path that the file has now, for a caller that reads what it still holds: a disk that has damaged a
// file may also fail its rename.
func (e *DamagedError) Now() string { return cmp.Or(e.Aside, e.Path) }

// Unwrap returns the reason, and the error of the rename if it failed.
func (e *DamagedError) Unwrap() error { return e.err }

// SetAside renames a damaged file, so that a good one can take its place and the damage can be looked at. The result
// has the reason, which must not be nil.
func SetAside(path string, reason error) *DamagedError {
	aside, err := Rename(path)
	return &DamagedError{Path: path, Aside: aside, err: errors.Join(reason, err)}
}

// Rename renames a damaged file to PATH.damaged, and returns that; to PATH.1.damaged if something other than a file has
// that name, and so on. It returns an empty path if it fails.
func Rename(path string) (aside string, err error) {
	aside = asideOf(path)
	if err := os.Rename(path, aside); err != nil {
		return "", err
	}
	return aside, nil
}

// IsAside reports whether a file name is that of a file that was set aside.
func IsAside(name string) bool { return strings.HasSuffix(name, damagedSuffix) }

// UnreadableError is the error of a file whose content is unknown, because the disk fails or this process may not read
// it. The file stays in its place. It must not be taken for a missing or an empty one: read it again later, and do not
// replace it before.
type UnreadableError struct {
	// Path is the file.
	Path string
	err  error
}

// Error returns the reason and what to do.
func (e *UnreadableError) Error() string {
	remedy := "check the disk"
	if errors.Is(e.err, fs.ErrPermission) {
		remedy = "let the user of this process read it"
	}
	return fmt.Sprintf("%s cannot be read: %v: %s, or remove the file to go on without its content", e.Path, e.err, remedy)
}

// Unwrap returns the reason.
func (e *UnreadableError) Unwrap() error { return e.err }

// Hangs returns the error of a file whose read has not ended in time.
func Hangs(path string) error { return &UnreadableError{Path: path, err: ErrHangs} }

// IsUnreadable reports whether an error is that of a file whose content is unknown.
func IsUnreadable(err error) bool {
	var unreadable *UnreadableError
	return errors.As(err, &unreadable)
}

// OnFailingDisk reports whether an operator's file cannot be read for a reason that may pass: its disk fails. A file
// that is missing, or that this user may not read, is wrong.
func OnFailingDisk(err error) bool {
	var failure *fs.PathError
	var reason unix.Errno
	if !errors.As(err, &failure) || !errors.As(failure.Err, &reason) {
		return false
	}
	return !slices.Contains([]unix.Errno{
		unix.ENOENT, unix.EACCES, unix.EPERM, unix.EISDIR, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL,
		unix.ENXIO,
	}, reason)
}

// Read reads a whole file. If there is none, the error is fs.ErrNotExist. What is no file is set aside, and the error
// is a *DamagedError. Any other failure is an *UnreadableError.
func Read(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	switch {
	case err == nil:
		return data, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return nil, SetAside(path, err)
	}
	var cause *fs.PathError
	if errors.As(err, &cause) {
		err = cause.Err // the path is named once
	}
	return nil, &UnreadableError{Path: path, err: err}
}

// LoadCache is LoadChecked for a file whose content this process can do without: one that cannot be read is set aside,
// too.
func LoadCache(path, node string, into any, valid func() error) error {
	err := LoadChecked(path, node, into, valid)
	var unreadable *UnreadableError
	if errors.As(err, &unreadable) {
		return SetAside(path, unreadable.err)
	}
	return err
}
