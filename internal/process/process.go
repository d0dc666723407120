// Package process waits for and ends processes that need not be children of this one, such as a runtime or a node that
// an earlier command has started.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Wait returns when a process has ended, or when the context ends; the caller distinguishes the two by the context. A
// process that does not exist, and a zombie, count as ended.
func Wait(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watching process %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		return errors.Join(fmt.Errorf("watching process %d: %w", pid, err), file.Close())
	}
	stop := context.AfterFunc(ctx, func() {
		_ = file.SetReadDeadline(time.Unix(1, 0)) // fails only if the file is closed, which ends the wait too
	})
	defer stop()
	conn, err := file.SyscallConn()
	if err != nil {
		return errors.Join(fmt.Errorf("watching process %d: %w", pid, err), file.Close())
	}
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor fits
		return err == nil && n > 0
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return errors.Join(err, file.Close())
}

// End sends SIGTERM to a process, kills it if it has not ended within timeout, and waits for its end. It fails if the
// process may not be signaled, or if the context ends first.
func End(ctx context.Context, pid int, timeout time.Duration) error {
	if err := Signal(pid, unix.SIGTERM); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := Wait(patient, pid); err != nil {
		return err
	}
	if patient.Err() == nil {
		return nil
	}
	return Kill(ctx, pid)
}

// Kill sends SIGKILL to a process and waits for its end.
func Kill(ctx context.Context, pid int) error {
	if err := Signal(pid, unix.SIGKILL); err != nil {
		return err
	}
	if err := Wait(ctx, pid); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("waiting for the end of process %d: %w", pid, err)
	}
	return nil
}

// Signal sends a signal. It is a no-op for a process that does not exist.
func Signal(pid int, signal unix.Signal) error {
	if err := unix.Kill(pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("sending %v to process %d: %w", signal, pid, err)
	}
	return nil
}
