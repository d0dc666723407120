package statedir

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/process"
)

// Open returns the process that holds the lock, if it can be proved that it does: the kernel says so (proc_locks(5)),
// or it has the whole identity that the lock file names. The file alone proves nothing, because a holder that could not
// write its name leaves that of another process, whose number may have been reused. A process of another PID namespace
// is refused. The error is process.ErrEnded if the holder has ended.
func (e *HeldError) Open() (_ *process.Process, err error) {
	file, err := os.Open(e.Path)
	if err != nil {
		return nil, fmt.Errorf("finding who holds a lock: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	pid, err := lockedBy(file)
	if err != nil {
		return nil, fmt.Errorf("finding who holds %s: %w", e.Path, err)
	}
	prove := func() error {
		if now, err := lockedBy(file); err != nil || now != pid {
			return errors.Join(process.ErrEnded, err)
		}
		return process.Local(pid)
	}
	if pid == 0 {
		if err := e.Holder.named(); err != nil {
			return nil, e.unproven(err)
		}
		pid, prove = e.Holder.PID, func() error {
			if err := flock(file); !errors.Is(err, unix.EWOULDBLOCK) {
				return errors.Join(process.ErrEnded, err) // it is released when the file is closed
			}
			return e.Holder.prove()
		}
	}
	opened, err := process.Open(pid, prove)
	if err != nil && !errors.Is(err, process.ErrEnded) {
		err = e.unproven(err)
	}
	return opened, err
}

func (e *HeldError) unproven(err error) error {
	return fmt.Errorf("no process is ended, because none is known to be %v, which holds %s: %w: %s",
		e.Holder, e.Path, err, e.remedy())
}

// named fails if the holder has no identity in this PID namespace.
func (h Holder) named() error {
	self, err := process.Self()
	switch {
	case err != nil:
		return err
	case h.PID == 0 || h.Started == 0 || h.Boot == "" || h.PIDNamespace == "":
		return errors.New("the file does not say when the process began and in which PID namespace")
	case h.Boot != self.Boot || h.PIDNamespace != self.Namespace:
		return process.ErrForeign
	default:
		return nil
	}
}

// prove fails if the process with the number of the holder is another one.
func (h Holder) prove() error {
	now, err := process.Of(h.PID)
	if err != nil {
		return err
	}
	if now != (process.Identity{PID: h.PID, Started: h.Started, Boot: h.Boot, Namespace: h.PIDNamespace}) {
		return fmt.Errorf("process %d is another one", h.PID)
	}
	return nil
}
