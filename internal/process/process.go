// Package process waits for and ends processes that need not be children of this one, such as a runtime or a node that
// an earlier command has started. A process is held by a pidfd (pidfd_open(2)), so that a signal never reaches another
// process that has got its number.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrEnded is returned for a process that does not exist. A zombie counts as ended.
var ErrEnded = errors.New("the process has ended")

// Process is a process that may have ended.
type Process struct {
	pid  int
	file *os.File
}

// Open holds the process that has a number now. Prove is called then: it returns nil if the process with this number is
// the one that the caller means. The error is ErrEnded if the process does not exist.
func Open(pid int, prove func() error) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrEnded
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", pid, err)
	}
	p := &Process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd")}
	if err := prove(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	// If it still runs, then its number was not reused while prove looked at it.
	if ended(fd) {
		return nil, errors.Join(ErrEnded, p.Close())
	}
	return p, nil
}

// ended reports whether a pidfd is readable, which it is after the end of its process.
func ended(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor fits
	return err == nil && n > 0
}

// PID returns the number of the process.
func (p *Process) PID() int { return p.pid }

// Close gives the process up.
func (p *Process) Close() error { return p.file.Close() }

// Signal sends a signal. It is a no-op for a process that has ended.
func (p *Process) Signal(signal unix.Signal) error {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("sending %v to process %d: %w", signal, p.pid, err)
	}
	var sent error
	err = conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), signal, nil, 0) })
	if errors.Is(sent, unix.ESRCH) {
		sent = nil
	}
	if err := errors.Join(err, sent); err != nil {
		return fmt.Errorf("sending %v to process %d: %w", signal, p.pid, err)
	}
	return nil
}

// Wait returns when the process has ended, or when the context ends; the caller distinguishes the two by the context.
func (p *Process) Wait(ctx context.Context) error {
	if err := p.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("watching process %d: %w", p.pid, err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = p.file.SetReadDeadline(time.Unix(1, 0)) // fails only if the file is closed, which ends the wait too
	})
	defer stop()
	conn, err := p.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("watching process %d: %w", p.pid, err)
	}
	err = conn.Read(func(fd uintptr) bool { return ended(int(fd)) })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// End sends SIGTERM, kills the process if it has not ended within timeout, and waits for its end. It fails if the
// process may not be signaled, or if the context ends first.
func (p *Process) End(ctx context.Context, timeout time.Duration) error {
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := p.Wait(patient); err != nil {
		return err
	}
	if patient.Err() == nil {
		return nil
	}
	return p.Kill(ctx)
}

// Kill sends SIGKILL and waits for the end of the process.
func (p *Process) Kill(ctx context.Context) error {
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	if err := p.Wait(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("waiting for the end of process %d: %w", p.pid, err)
	}
	return nil
}

// Wait is Process.Wait for a number that the caller knows not to be reused, such as that of a child that is not reaped.
func Wait(ctx context.Context, pid int) error {
	return with(pid, func(p *Process) error { return p.Wait(ctx) })
}

// End is Process.End for a number that the caller knows not to be reused.
func End(ctx context.Context, pid int, timeout time.Duration) error {
	return with(pid, func(p *Process) error { return p.End(ctx, timeout) })
}

// Kill is Process.Kill for a number that the caller knows not to be reused.
func Kill(ctx context.Context, pid int) error {
	return with(pid, func(p *Process) error { return p.Kill(ctx) })
}

func with(pid int, do func(*Process) error) error {
	p, err := Open(pid, func() error { return nil })
	if errors.Is(err, ErrEnded) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(do(p), p.Close())
}
