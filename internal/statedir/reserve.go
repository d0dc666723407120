package statedir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

const (
	// reserveSize is the size of a reserve in bytes: some hundred records of pods.
	reserveSize = 256 << 10
	// refillPeriod is how often a released reserve is filled again.
	refillPeriod = time.Minute
	reserveMode  = 0o600
)

// Reserve is a file that keeps disk space for what must be written although the disk is full. A nil Reserve has none.
type Reserve struct {
	path     string
	released atomic.Bool
}

// NewReserve fills the reserve at a path. A failure only means that there is no reserve until Run has filled it.
func NewReserve(path string) (*Reserve, error) {
	r := &Reserve{path: path}
	err := Inform(r.fill)
	r.released.Store(err != nil)
	return r, err
}

// Write calls a function that writes, and calls it again with the space of the reserve if the disk is full. It returns
// the error of the last call.
func (r *Reserve) Write(write func() error) error {
	err := write()
	if r == nil || !isFull(err) || r.released.Swap(true) {
		return err
	}
	if removed := os.Remove(r.path); removed != nil {
		return errors.Join(err, removed)
	}
	return write()
}

// Run fills the reserve again after its use, and returns when ctx ends.
func (r *Reserve) Run(ctx context.Context, clock clock.WithTicker) error {
	ticker := clock.NewTicker(refillPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			// The next turn tries it again.
			if r.released.Load() && r.fill() == nil {
				r.released.Store(false)
			}
		}
	}
}

// fill makes the file with blocks of its own. A file without all of them is removed.
func (r *Reserve) fill() (err error) {
	file, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC|unix.O_NOFOLLOW, reserveMode)
	if err != nil {
		return fmt.Errorf("reserve disk space: %w", err)
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			err = fmt.Errorf("reserve disk space: %w", errors.Join(err, removeIfThere(r.path)))
		}
	}()
	err = unix.Fallocate(int(file.Fd()), 0, 0, reserveSize)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = file.WriteAt(make([]byte, reserveSize), 0)
	}
	return err
}

// isFull reports whether an error says that the disk, or the quota of the user, is full.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
