// Package diskfault runs a program on a disk that fails: calls that change or open chosen files get an error, or hang,
// while all others work. The program is a real one, because the errors come from below it: a seccomp filter passes its
// file calls, and those of the processes that it starts, to the test, which answers each. See seccomp_unotify(2).
//
//	program ──openat, write, fsync …──► filter ──► Disk ──► the kernel does it, or an error, or a hang
package diskfault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/require"
)

const (
	// asLauncher is the environment variable that makes a process of the test's binary a launcher: Launch.
	asLauncher = "QUARTET_TEST_DISKFAULT"
	// handover is the launcher's file descriptor to which it sends the filter's listener.
	handover = 3
	// startLimit bounds the time until a started program has sent its listener, in seconds.
	startLimit = 60
	// pollMillis is how often a Disk looks whether the test has ended.
	pollMillis = 200
)

// Fault is what happens to calls of a file.
type Fault struct {
	// Errno is the error of the calls that can return it; 0 for a hang: the calls that write wait until the fault is over.
	Errno unix.Errno
	// Match reports whether a file has the fault. A temporary file has the path of the file that it will replace.
	Match func(path string) bool
}

// Disk answers the file calls of the programs that it wraps.
type Disk struct {
	t       testing.TB
	serving sync.WaitGroup

	mu    sync.Mutex
	fault *Fault
	// over is closed when the fault ends; nil without a fault.
	over  chan struct{}
	ended bool
	// hits has the calls that had the fault since it began.
	hits []string
	// written has the files that were created or replaced.
	written map[string]bool
}

// New returns a Disk without a fault. The programs have to end before the test.
func New(t testing.TB) *Disk {
	t.Helper()
	require.Root(t, "a seccomp filter")
	d := &Disk{t: t, written: map[string]bool{}}
	t.Cleanup(func() {
		d.Clear()
		d.mu.Lock()
		d.ended = true
		d.mu.Unlock()
		d.serving.Wait()
	})
	return d
}

// Set gives the disk a fault in place of the one that it has.
func (d *Disk) Set(f Fault) {
	d.Clear()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault, d.over, d.hits = &f, make(chan struct{}), nil
}

// Clear ends the fault: hanging calls go on. It returns the calls that had the fault.
func (d *Disk) Clear() (hits []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over != nil {
		close(d.over)
	}
	d.fault, d.over = nil, nil
	return d.hits
}

// Hits returns the calls that have had the fault since it began.
func (d *Disk) Hits() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.hits)
}

// Written returns the files that were created or replaced.
func (d *Disk) Written() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for path := range d.written {
		all = append(all, path)
	}
	return all
}

// Wrap has a command that is not started run on the disk. The process keeps its ID and arguments.
func (d *Disk) Wrap(cmd *exec.Cmd) {
	d.t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptTimeval(ends[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: startLimit})
	}
	if err != nil {
		d.t.Fatal(err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, asLauncher+"="+cmd.Path)
	cmd.Path = os.Args[0]
	if cmd.ExtraFiles != nil {
		d.t.Fatal("diskfault: the command has files of its own")
	}
	child := os.NewFile(uintptr(ends[1]), "handover")
	cmd.ExtraFiles = []*os.File{child}
	d.t.Cleanup(func() { _ = child.Close() }) // the command has its own
	d.serving.Go(func() {
		listener, err := receive(ends[0])
		if err := errors.Join(err, unix.Close(ends[0])); err != nil {
			d.t.Errorf("diskfault: the filter of a program: %v", err)
			return
		}
		d.serve(listener)
	})
}

// Launch has to be the first call of the TestMain of a package that uses a Disk. It returns at once in a test; in a
// launcher it installs the filter and becomes the program.
func Launch() {
	path := os.Getenv(asLauncher)
	if path == "" {
		return
	}
	runtime.LockOSThread() // the filter is that of the thread that becomes the program
	err := os.Unsetenv(asLauncher)
	if err == nil {
		err = install()
	}
	if err == nil {
		err = syscall.Exec(path, os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "diskfault:", err)
	os.Exit(1)
}

// filtered are the calls that the filter passes to the Disk.
func filtered() []uint32 {
	return []uint32{
		unix.SYS_OPENAT, unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_WRITEV, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE,
		unix.SYS_FCHMOD, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT,
		unix.SYS_RENAMEAT2,
	}
}

// install installs the filter, and sends its listener.
func install() error {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		result = unix.BPF_RET | unix.BPF_K
	)
	program := []unix.SockFilter{{Code: load, K: 0}} // the number of the call
	calls := filtered()
	for i, call := range calls {
		program = append(program, unix.SockFilter{Code: equal, Jt: uint8(len(calls) - i), K: call})
	}
	program = append(program, unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: result, K: unix.SECCOMP_RET_USER_NOTIF})
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return fmt.Errorf("install the filter: %w", errno)
	}
	err := unix.Sendmsg(handover, []byte{0}, unix.UnixRights(int(listener)), nil, 0)
	return errors.Join(err, unix.Close(handover), unix.Close(int(listener)))
}

// receive returns the listener that a launcher sends.
func receive(from int) (listener int, err error) {
	oob := make([]byte, unix.CmsgSpace(4))
	n, err := 0, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		_, n, _, _, err = unix.Recvmsg(from, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("the launcher has ended: %w", errors.Join(err, unix.ENOTCONN))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return 0, err
	}
	return fds[0], nil
}

// notification is struct seccomp_notif, and answer struct seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type answer struct {
	id           uint64
	value        int64
	error, flags int32
}

// serve answers the calls of a program until it and all that it has started have ended, or the test ends.
func (d *Disk) serve(listener int) {
	var hanging sync.WaitGroup
	defer func() {
		hanging.Wait()
		_ = unix.Close(listener) // nobody waits for an answer
	}()
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, pollMillis)
		d.mu.Lock()
		ended := d.ended
		d.mu.Unlock()
		if ended || poll[0].Revents&unix.POLLHUP != 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return
		}
		if n < 1 {
			continue
		}
		var call notification
		if ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&call)) != 0 {
			continue // the thread has got a signal or has ended
		}
		reply, wait := d.decide(&call)
		if wait == nil {
			_ = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply))
			continue
		}
		hanging.Go(func() {
			<-wait
			_ = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply))
		})
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}

// decide returns the answer to a call, and the channel to wait for before it is sent.
func (d *Disk) decide(n *notification) (reply answer, wait <-chan struct{}) {
	reply = answer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	what, paths := describe(n)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, path := range paths {
		path = Final(path)
		if what == create || what == rename {
			d.written[path] = true
		}
		if d.fault == nil || !d.fault.Match(path) {
			continue
		}
		switch {
		case d.fault.Errno == 0 && what != read:
			wait = d.over
		case d.fault.Errno != 0 && what.fails(d.fault.Errno, paths):
			reply.flags, reply.error = 0, -int32(d.fault.Errno)
		default:
			continue
		}
		d.hits = append(d.hits, fmt.Sprintf("%s %s", what, path))
		break
	}
	return reply, wait
}

// operation is a kind of calls.
type operation string

const (
	create   operation = "create"
	read     operation = "read"
	write    operation = "write"
	allocate operation = "allocate"
	mode     operation = "chmod"
	flush    operation = "sync"
	mkdir    operation = "mkdir"
	remove   operation = "remove"
	rename   operation = "rename"
)

// fails reports whether a call on a disk in a state returns an error.
func (o operation) fails(errno unix.Errno, paths []string) bool {
	switch errno { //nolint:exhaustive // all others
	case unix.ENOSPC, unix.EDQUOT:
		if o == create {
			_, err := os.Lstat(paths[0])
			return err != nil
		}
		return o == write || o == allocate || o == mkdir
	case unix.EROFS:
		return o != read && o != flush
	default:
		return true
	}
}

// describe returns what a call does and to which paths; no paths for one that has nothing to do with a disk.
func describe(n *notification) (what operation, paths []string) {
	open := func() []string {
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.pid, int32(n.args[0])))
		if err != nil || !filepath.IsAbs(path) {
			return nil
		}
		return []string{path}
	}
	in := func(dir, arg int) string {
		name := textAt(n.pid, n.args[arg])
		if filepath.IsAbs(name) {
			return name
		}
		folder := fmt.Sprintf("/proc/%d/cwd", n.pid)
		if at := int32(n.args[dir]); at >= 0 {
			folder = fmt.Sprintf("/proc/%d/fd/%d", n.pid, at)
		}
		folder, _ = os.Readlink(folder)
		return filepath.Join(folder, name)
	}
	switch n.nr {
	case unix.SYS_OPENAT:
		if n.args[2]&(unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_RDWR) != 0 {
			return create, []string{in(0, 1)}
		}
		return read, []string{in(0, 1)}
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_WRITEV:
		return write, open()
	case unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE:
		return allocate, open()
	case unix.SYS_FCHMOD:
		return mode, open()
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		return flush, open()
	case unix.SYS_MKDIRAT:
		return mkdir, []string{in(0, 1)}
	case unix.SYS_UNLINKAT:
		return remove, []string{in(0, 1)}
	default:
		return rename, []string{in(2, 3), in(0, 1)}
	}
}

var temporary = regexp.MustCompile(`^\.(.+)\.tmp-\d+$`)

// Final returns the path of the file that a temporary file replaces; other paths are returned as they are.
func Final(path string) string {
	dir, name := filepath.Split(path)
	return dir + temporary.ReplaceAllString(strings.TrimSuffix(name, ".tmp"), "$1")
}

// textAt reads a string from the memory of a thread that waits for the answer.
func textAt(thread uint32, address uint64) string {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", thread))
	if err != nil {
		return ""
	}
	defer memory.Close() //nolint:errcheck // it was only read
	text := make([]byte, unix.PathMax)
	n, _ := memory.ReadAt(text, int64(address))
	before, _, _ := strings.Cut(string(text[:n]), "\x00")
	return before
}
