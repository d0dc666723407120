// Package statedir keeps what a process must find again after a crash: one directory for the node, at most one process
// of each service in it, and files that are either the old ones or the new ones, never half of one.
package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// dirMode lets only the owner read the state: it may hold secrets of pods.
const dirMode = 0o700

// maxHolderBytes bounds what is read from a lock file, which anyone with access to the directory may have written.
const maxHolderBytes = 4096

// Holder names the process that holds a lock.
type Holder struct {
	// Service is the service's name, for example "pleg".
	Service string `json:"service"`
	// PID is its process id.
	PID int `json:"pid"`
}

// HeldError says that another process holds the lock of a service. Nothing is wrong with the state directory; the
// other process has to end first.
type HeldError struct {
	// Path is the lock file.
	Path string
	// Holder is who holds it; the zero value when the file does not say.
	Holder Holder
}

// Error names the holder and says what to do.
func (e *HeldError) Error() string {
	if e.Holder.PID == 0 {
		return fmt.Sprintf("%s is locked by another process: stop it, or use another --state-dir", e.Path)
	}
	return fmt.Sprintf("%s is locked by %s with pid %d: stop that process, or use another --state-dir",
		e.Path, e.Holder.Service, e.Holder.PID)
}

// Held is an exclusive hold on one service's place in a state directory. The kernel gives it up when the process ends,
// however it ends.
type Held struct {
	file *os.File
}

// Lock takes the lock of a service in a state directory, making the directory when there is none. It never waits:
// when another process has the lock the error is a *HeldError that names it.
func Lock(dir, service string) (*Held, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	path := filepath.Join(dir, service+".lock")
	// The file is never removed: whoever removes a lock file lets two others hold two files of one name.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock file of %s: %w", service, err)
	}
	if err := flock(file); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &HeldError{Path: path, Holder: readHolder(file)}
		} else {
			err = fmt.Errorf("locking %s: %w", path, err)
		}
		return nil, errors.Join(err, file.Close())
	}
	if err := writeHolder(file, Holder{Service: service, PID: os.Getpid()}); err != nil {
		return nil, errors.Join(fmt.Errorf("writing %s: %w", path, err), file.Close())
	}
	return &Held{file: file}, nil
}

// Release gives the lock up.
func (h *Held) Release() error {
	if err := h.file.Close(); err != nil {
		return fmt.Errorf("releasing %s: %w", h.file.Name(), err)
	}
	return nil
}

func flock(file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func writeHolder(file *os.File, holder Holder) error {
	data, err := json.Marshal(holder)
	if err != nil {
		return err
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err = file.WriteAt(append(data, '\n'), 0)
	return err
}

// readHolder returns the zero Holder when the file says nothing that can be read: between taking the lock and writing
// its name a holder is nameless for a moment.
func readHolder(file *os.File) Holder {
	data, err := io.ReadAll(io.NewSectionReader(file, 0, maxHolderBytes))
	if err != nil {
		return Holder{}
	}
	var holder Holder
	if err := json.Unmarshal(data, &holder); err != nil {
		return Holder{}
	}
	holder.Service = strings.ToValidUTF8(holder.Service, "")
	return holder
}
