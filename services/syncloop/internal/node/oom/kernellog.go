package oom

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
	// Device is the path of the kernel's log.
	Device = "/dev/kmsg"
	// major and minor are the device's numbers, the same on every machine.
	major, minor = 1, 11
	// maxRecord is the size of the buffer in bytes. The kernel's records have at most 8 KiB.
	maxRecord = 16 << 10
)

// KernelLog is the opened log of the kernel, /dev/kmsg. It is read one record at a time. It must not be used
// concurrently. The only existing library, go-kmsg-parser, cannot be stopped, and does not return the origin of a
// record.
type KernelLog struct {
	file   *os.File
	conn   syscall.RawConn
	buffer []byte
}

// OpenLog opens the log at the oldest record that the kernel still has. If access is denied, the error names the
// required permissions.
func OpenLog(path string) (*KernelLog, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: the process needs CAP_SYSLOG if the sysctl kernel.dmesg_restrict is 1, "+
			"and access to the device %d:%d if it is in a container", err, major, minor)
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
	return &KernelLog{file: file, conn: conn, buffer: make([]byte, maxRecord)}, nil
}

// isLog returns an error for a file that is not the kernel's log. Some containers have another file in its place.
func isLog(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	isDevice := ok && info.Mode().Type()&fs.ModeCharDevice != 0
	if !isDevice || unix.Major(stat.Rdev) != major || unix.Minor(stat.Rdev) != minor {
		return fmt.Errorf("%s is not the log of the kernel, the device %d:%d", file.Name(), major, minor)
	}
	return nil
}

// Close closes the log.
func (l *KernelLog) Close() error { return l.file.Close() }

// Pending returns the next record without waiting; ok is false if there is none yet.
func (l *KernelLog) Pending() (r Record, ok bool, err error) {
	n, err := l.read(false)
	if errors.Is(err, unix.EAGAIN) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, err
	}
	r, err = ParseRecord(string(l.buffer[:n]))
	return r, err == nil, err
}

// Next returns the next record. It waits until there is one or ctx ends, and then returns the error of ctx.
func (l *KernelLog) Next(ctx context.Context) (Record, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = l.file.SetReadDeadline(time.Unix(1, 0)) // It fails only for a closed file, whose read has returned.
	})
	defer stop()
	n, err := l.read(true)
	if ctx.Err() != nil {
		return Record{}, ctx.Err()
	}
	if err != nil {
		return Record{}, err
	}
	return ParseRecord(string(l.buffer[:n]))
}

// read reads one record into the buffer. If the kernel has dropped records before they were read, it continues with the
// oldest that is left.
func (l *KernelLog) read(wait bool) (n int, err error) {
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
		return 0, fmt.Errorf("read %s: unexpected end of file", l.file.Name())
	}
	return n, nil
}
