// Package statedir keeps what a process must find again after a crash: one directory for the node, at most one process
// of each service in it, and files that are either the old ones or the new ones, never half of one.
package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// dirMode lets only the owner read the state: it may hold secrets of pods.
const dirMode = 0o700

// HeldError says that another process holds the lock of a service. Nothing is wrong with the state directory; the
// other process has to end first.
type HeldError struct {
	// Path is the lock file.
	Path string
	// Holder is who holds it; the zero value when the file does not say.
	Holder Holder
	// here is this process.
	here Holder
}

// Error names the holder and says what to do.
func (e *HeldError) Error() string {
	return fmt.Sprintf("%s is locked by %v: %s, or use another --state-dir", e.Path, e.Holder, e.remedy())
}

func (e *HeldError) remedy() string {
	switch {
	case e.Holder.PID == 0:
		return "stop it"
	case e.Holder.Container != "" && e.Holder.Container != e.here.Container:
		return fmt.Sprintf("stop that container (docker stop %s)", e.Holder.Container)
	default:
		return "stop that process"
	}
}

// Held is an exclusive hold on one service's place in a state directory. The kernel gives it up when the process ends,
// however it ends.
type Held struct {
	file *os.File
}

// Lock takes the lock of a service in a state directory, making the directory when there is none. It never waits:
// when another process has the lock the error is a *HeldError that names it. Where the directory cannot be written, the
// error says who may not and what to do.
func Lock(dir, service string) (*Held, error) { return LockAs(dir, Self(service)) }

// LockAs is Lock for who has called Self before: a process that tries again and again, or that has changed its root since.
func LockAs(dir string, self Holder) (*Held, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, accessError(dir, dir, err)
	}
	path := filepath.Join(dir, self.Service+".lock")
	// The file is never removed: whoever removes a lock file lets two others hold two files of one name.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, accessError(dir, path, err)
	}
	if err := flock(file); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &HeldError{Path: path, Holder: readHolder(file), here: self}
		} else {
			err = fmt.Errorf("locking %s: %w", path, err)
		}
		return nil, errors.Join(err, file.Close())
	}
	self.Since = time.Now().UTC().Truncate(time.Second)
	if err := writeHolder(file, self); err != nil {
		return nil, errors.Join(fmt.Errorf("writing %s: %w", path, err), file.Close())
	}
	return &Held{file: file}, nil
}

// LastHolder returns who took the lock of a service last, whether it holds it still or not; the zero value when nobody
// has, or the file does not say.
func LastHolder(dir, service string) (Holder, error) {
	file, err := os.Open(filepath.Join(dir, service+".lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return Holder{}, nil
	}
	if err != nil {
		return Holder{}, fmt.Errorf("reading who holds the lock of %s: %w", service, err)
	}
	return readHolder(file), file.Close()
}

// Release gives the lock up.
func (h *Held) Release() error {
	if err := h.file.Close(); err != nil {
		return fmt.Errorf("releasing %s: %w", h.file.Name(), err)
	}
	return nil
}

// accessError says what an operator can do about a state directory in which this process cannot have a path.
func accessError(dir, path string, err error) error {
	remedy := "see that it is a directory on a disk that works"
	if errors.Is(err, unix.EROFS) {
		remedy = "it is on a read-only file system: mount it writable"
	}
	if errors.Is(err, fs.ErrPermission) {
		uid := os.Geteuid()
		switch _, missing := os.Stat(path); {
		case missing == nil:
			remedy = fmt.Sprintf("user %d may not write what another user left: chown %d %s", uid, uid, path)
		case path == dir:
			remedy = fmt.Sprintf("user %d may not make it: make it as root (install -d -m 0700 -o %d %s)", uid, uid, dir)
		default:
			remedy = fmt.Sprintf("user %d may not write in it: chown %d %s", uid, uid, dir)
		}
	}
	return fmt.Errorf("the state directory %s cannot be used: %w: %s, or name another with --state-dir", dir, err, remedy)
}

func flock(file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
