package rpc_test

import (
	"errors"
	"io"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// as calls a function as a user and group.
func as[R any](t *testing.T, uid, gid int, call func() R) R {
	t.Helper()
	answers := make(chan R, 1)
	go func() {
		// The thread keeps the other identity and ends with the goroutine.
		runtime.LockOSThread()
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESGID, ^uintptr(0), uintptr(gid), ^uintptr(0)); errno != 0 {
			t.Errorf("setresgid(%d): %v", gid, errno)
		}
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			t.Errorf("setresuid(%d): %v", uid, errno)
		}
		answers <- call()
	}()
	return <-answers
}

// pingAs connects to the socket as a user and group, sends the HTTP/2 preface, and returns the number of received bytes
// at the end of the connection or after a minute.
func pingAs(t *testing.T, path string, uid, gid int) int {
	t.Helper()
	return as(t, uid, gid, func() int { return ping(t, path) })
}

func ping(t *testing.T, path string) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}()
	timeout := unix.NsecToTimeval(int64(time.Minute))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Error(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Error(err)
		return 0
	}
	if _, err := unix.Write(
		fd,
		[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
	); err != nil &&
		!errors.Is(err, unix.EPIPE) {
		t.Error(err)
	}
	buf := make([]byte, 1024)
	n, err := unix.Read(fd, buf)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Error(err)
	}
	return max(n, 0)
}
