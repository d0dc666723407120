// Package statedir keeps the state of a process across crashes: one directory for the node, a lock that admits one
// process of each service, and files that are replaced atomically.
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

// dirMode lets only the owner read the state, because it may hold secrets of pods.
const dirMode = 0o700

// HeldError is returned if another process holds the lock of a service. The state directory is fine; the other process
// has to end first.
type HeldError struct {
	// Path is the path of the lock file.
	Path string
	// Holder is the holder of the lock; zero if the file does not name it.
	Holder Holder
	// here is this process.
	here Holder
}

// Error returns the holder and the remedy.
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

// Held is an acquired lock of a service. The kernel releases it when the process ends, for any reason.
type Held struct {
	file *os.File
}

// Lock takes the lock of a service in a state directory, which it creates if necessary. It never waits: if another
// process holds the lock, the error is a *HeldError that names it. If the directory is not writable, the error names
// the remedy.
func Lock(dir, service string) (*Held, error) { return LockAs(dir, Self(service)) }

// LockAs is Lock for a caller that has called Self before, because it retries or has changed its root since.
func LockAs(dir string, self Holder) (*Held, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, accessError(dir, dir, err)
	}
	path := filepath.Join(dir, self.Service+".lock")
	file, err := openLock(path)
	if err != nil {
		return nil, accessError(dir, path, err)
	}
	if err := flock(file); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &HeldError{Path: path, Holder: holderOf(file, self.Service), here: self}
		} else {
			err = fmt.Errorf("locking %s: %w", path, err)
		}
		return nil, errors.Join(err, file.Close())
	}
	self.Since = time.Now().UTC().Truncate(time.Second)
	// The lock is held also if its text cannot be written, because the disk is full, read-only or hangs: see holderOf.
	_ = Inform(func() error { return writeHolder(file, self) })
	return &Held{file: file}, nil
}

// openLock opens a lock file. It is never removed, because then two processes could lock two files of the same name. A
// directory in its place, which no process has locked, is set aside. On a disk that the kernel has made read-only, a
// file that is there is opened for reading, which is enough for a lock: a node that has started there before starts
// again.
func openLock(path string) (*os.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | unix.O_CLOEXEC
	file, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, unix.EISDIR) {
		if _, renamed := Rename(path); renamed != nil {
			return nil, errors.Join(err, renamed)
		}
		file, err = os.OpenFile(path, flags, 0o600)
	}
	if errors.Is(err, unix.EROFS) {
		existing, missing := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
		if missing == nil {
			return existing, nil
		}
	}
	return file, err
}

// LastHolder returns the last holder of the lock of a service, which may have released it; zero if there was none or
// the file does not name it.
func LastHolder(dir, service string) (Holder, error) {
	file, err := os.Open(filepath.Join(dir, service+".lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return Holder{}, nil
	}
	if err != nil {
		return Holder{}, fmt.Errorf("reading the holder of the lock of %s: %w", service, err)
	}
	return readHolder(file), file.Close()
}

// Pass lets the program that replaces this process keep the lock, and every child that is started before. It returns
// the descriptor for Passed.
func (h *Held) Pass() (fd int, err error) {
	raw, err := h.file.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("passing %s: %w", h.file.Name(), err)
	}
	var setErr error
	if err := raw.Control(func(descriptor uintptr) {
		fd = int(descriptor)
		_, setErr = unix.FcntlInt(descriptor, unix.F_SETFD, 0)
	}); err != nil || setErr != nil {
		return -1, fmt.Errorf("passing %s: %w", h.file.Name(), errors.Join(err, setErr))
	}
	return fd, nil
}

// Passed returns the lock that the program has passed which this process has been before. No child inherits it.
func Passed(fd int) (*Held, error) {
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), "lock")
	if file == nil {
		return nil, fmt.Errorf("%d is no descriptor of a lock", fd)
	}
	return &Held{file: file}, nil
}

// Release releases the lock.
func (h *Held) Release() error {
	if err := h.file.Close(); err != nil {
		return fmt.Errorf("releasing %s: %w", h.file.Name(), err)
	}
	return nil
}

// accessError adds the remedy to the error of an unusable state directory.
func accessError(dir, path string, err error) error {
	remedy := "check that it is a directory on a working disk"
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
