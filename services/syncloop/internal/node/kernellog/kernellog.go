// Package kernellog reads the log of the kernel, /dev/kmsg, a record at a time and with its number, by which a reader that comes back
// knows what it has seen. Package oom looks for what it tells of processes that were killed.
//
// The one library that there is for it (go-kmsg-parser) cannot be told to end, and does not say who has written a record.
package kernellog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Device is where the kernel's log is.
	Device = "/dev/kmsg"
	// major and minor are the device's numbers, the same on every machine.
	major, minor = 1, 11
	// maxRecord is more than any record has, in bytes: the kernel makes none of more than 8 KiB.
	maxRecord = 16 << 10
)

// Log is the kernel's log, opened. It is for one goroutine at a time.
type Log struct {
	file   *os.File
	conn   syscall.RawConn
	buffer []byte
}

// Open opens the log at the oldest record that the kernel still has. The error says what to do when this process may not read it.
func Open(path string) (*Log, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: it takes CAP_SYSLOG where the sysctl kernel.dmesg_restrict is 1, and in a container the device %d:%d", err, major, minor)
	}
	if err != nil {
		return nil, err
	}
	conn, err := file.SyscallConn()
	if err == nil {
		err = isLog(file)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Log{file: file, conn: conn, buffer: make([]byte, maxRecord)}, nil
}

// isLog fails for a file that is not the kernel's log, as containers have them in its place.
func isLog(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode().Type()&fs.ModeCharDevice == 0 || unix.Major(stat.Rdev) != major || unix.Minor(stat.Rdev) != minor {
		return fmt.Errorf("%s is not the log of the kernel, the device %d:%d", file.Name(), major, minor)
	}
	return nil
}

// Close closes it.
func (l *Log) Close() error { return l.file.Close() }

// Pending returns the next record if there is one already; ok is false when there is not.
func (l *Log) Pending() (r Record, ok bool, err error) {
	n, err := l.read(false)
	if errors.Is(err, unix.EAGAIN) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, err
	}
	r, err = Parse(string(l.buffer[:n]))
	return r, err == nil, err
}

// Next returns the next record, and waits for it until ctx ends, whose error it returns then.
func (l *Log) Next(ctx context.Context) (Record, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = l.file.SetReadDeadline(time.Unix(1, 0)) // fails only when the file is closed: the wait is over then
	})
	defer stop()
	n, err := l.read(true)
	if ctx.Err() != nil {
		return Record{}, ctx.Err()
	}
	if err != nil {
		return Record{}, err
	}
	return Parse(string(l.buffer[:n]))
}

// read reads one record into the buffer. Records that the kernel has dropped before they were read are passed over: what is left is
// read on.
func (l *Log) read(wait bool) (n int, err error) {
	ended := l.conn.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Read(int(fd), l.buffer)
			if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EPIPE) {
				return !wait || !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	switch {
	case ended != nil:
		return 0, fmt.Errorf("read %s: %w", l.file.Name(), ended)
	case err != nil:
		return 0, fmt.Errorf("read %s: %w", l.file.Name(), err)
	case n == 0:
		return 0, fmt.Errorf("read %s: it has ended", l.file.Name())
	}
	return n, nil
}
