// Package killpoint runs a process and kills it before one of the system calls by which it changes something below a
// directory. A test that does so for each call in turn has seen every state that a crash can leave.
package killpoint

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/require"
)

// Tracer runs a process, sees each of its system calls that change something below a directory, and kills it with
// SIGKILL before one of them. The kernel does not run the system call of a process that is killed there. See ptrace(2).
type Tracer struct {
	// Root is the directory; names are relative to it.
	Root string
	// Kill is the number of the call before which the process is killed, counted from 1; 0 is never.
	Kill int
	// Calls are the seen calls, including the one that was not run.
	Calls []string
}

// syscallInfo is struct ptrace_syscall_info at the entry of a system call.
type syscallInfo struct {
	op   uint8
	_    [3]uint8
	_    uint32
	_, _ uint64
	nr   uint64
	args [6]uint64
}

const (
	// atEntry is the op of a syscallInfo at the entry.
	atEntry = 1
	// syscallStop is the signal of a stop at a system call, with PTRACE_O_TRACESYSGOOD.
	syscallStop = unix.SIGTRAP | 0x80
)

// Run runs the process to its end, and returns how it ended.
func (tr *Tracer) Run(t *testing.T, cmd *exec.Cmd) syscall.WaitStatus {
	t.Helper()
	// All requests have to come from the thread that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	require.NoError(t, cmd.Start()) // it fails where tracing is not allowed
	pid := cmd.Process.Pid
	must(t, cmd.Process.Release())
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("the child did not stop at its start: %v, %v", status, err)
	}
	options := unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE
	require.NoError(t, unix.PtraceSetOptions(pid, options))
	must(t, unix.PtraceSyscall(pid, 0))
	for {
		thread, err := syscall.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		must(t, err)
		switch {
		case status.Exited() || status.Signaled():
			if thread == pid {
				return status
			}
		case status.Stopped():
			tr.stopped(t, pid, thread, status)
		}
	}
}

// stopped resumes a stopped thread, or kills the process.
func (tr *Tracer) stopped(t *testing.T, pid, thread int, status syscall.WaitStatus) {
	t.Helper()
	pass := 0
	switch signal := status.StopSignal(); signal { //nolint:exhaustive // the others are the child's own
	case syscallStop:
		if call := tr.call(thread); call != "" {
			tr.Calls = append(tr.Calls, call)
			if len(tr.Calls) == tr.Kill {
				must(t, unix.Kill(pid, unix.SIGKILL))
				return
			}
		}
	case unix.SIGTRAP, unix.SIGSTOP: // a new thread, in the parent or at its start
	default:
		pass = int(signal)
	}
	// An error means that the thread has ended meanwhile.
	_ = unix.PtraceSyscall(thread, pass)
}

// The ioctl that sets the project ID of a directory, and the command of quotactl that sets a limit.
const (
	setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	setQuota      = 0x800008   // Q_SETQUOTA
)

// temporary matches the random part of the name of a temporary file.
var temporary = regexp.MustCompile(`\.tmp-\d+`)

// call describes the system call that a thread is about to make below Root; "" when it changes nothing there, or when
// the call has returned.
func (tr *Tracer) call(thread int) string {
	var info syscallInfo
	size, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(thread), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 || size == 0 || info.op != atEntry {
		return ""
	}
	open := func() string {
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", thread, int32(info.args[0])))
		return path
	}
	named := func(arg int) string { return textAt(thread, info.args[arg]) }
	// in returns a name relative to an open directory.
	in := func(dir, arg int) string {
		name := named(arg)
		if at := int32(info.args[dir]); !filepath.IsAbs(name) && at >= 0 {
			folder, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", thread, at))
			return filepath.Join(folder, name)
		}
		return name
	}
	var what string
	var paths []string
	switch info.nr {
	case unix.SYS_OPENAT:
		if info.args[2]&(unix.O_CREAT|unix.O_TRUNC) != 0 {
			what, paths = "create", []string{in(0, 1)}
		}
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_WRITEV:
		what, paths = "write", []string{open()}
	case unix.SYS_FTRUNCATE:
		what, paths = "truncate", []string{open()}
	case unix.SYS_FCHMOD:
		what, paths = "chmod", []string{open()}
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		what, paths = "sync", []string{open()}
	case unix.SYS_MKDIRAT:
		what, paths = "mkdir", []string{in(0, 1)}
	case unix.SYS_UNLINKAT:
		what, paths = "remove", []string{in(0, 1)}
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		what, paths = "rename", []string{in(0, 1), in(2, 3)}
	case unix.SYS_SYMLINKAT:
		what, paths = "link", []string{in(1, 2)}
	case unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2:
		what, paths = "chmod", []string{in(0, 1)}
	case unix.SYS_FCHOWNAT:
		what, paths = "chown", []string{in(0, 1)}
	case unix.SYS_MOUNT:
		what, paths = "mount", []string{named(1)}
	case unix.SYS_UMOUNT2:
		what, paths = "unmount", []string{named(0)}
	case unix.SYS_IOCTL:
		if info.args[1] == setAttributes {
			what, paths = "set attributes of", []string{open()}
		} else {
			what, paths = loopCall(thread, &info)
		}
	case unix.SYS_QUOTACTL_FD:
		if info.args[1]>>8 == setQuota {
			what, paths = "set a quota of", []string{open()}
		}
	case unix.SYS_LINKAT, unix.SYS_FALLOCATE, unix.SYS_COPY_FILE_RANGE:
		// No tested program uses these calls; the list of calls shows them if one does.
		what, paths = fmt.Sprintf("call %d of", info.nr), []string{named(1)}
	}
	for _, path := range paths {
		name, err := filepath.Rel(tr.Root, path)
		if err != nil || name == ".." || strings.HasPrefix(name, "../") {
			return ""
		}
		what += " " + temporary.ReplaceAllString(name, ".tmp")
	}
	return what
}

// loopCall describes the attachment of a loop device to a file, or its detachment.
func loopCall(thread int, info *syscallInfo) (what string, paths []string) {
	file := func(fd uint64) string {
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", thread, int32(fd)))
		return path
	}
	switch info.args[1] {
	case unix.LOOP_SET_FD:
		return "attach", []string{file(info.args[2])}
	case unix.LOOP_CLR_FD:
		name := filepath.Base(file(info.args[0]))
		backing, _ := os.ReadFile(filepath.Join("/sys/block", name, "loop/backing_file"))
		return "detach", []string{strings.TrimSpace(string(backing))}
	}
	return "", nil
}

// textAt reads a string from the memory of a stopped thread.
func textAt(thread int, address uint64) string {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", thread))
	if err != nil {
		return ""
	}
	defer func() { _ = memory.Close() }() // it was only read
	text := make([]byte, unix.PathMax)
	n, _ := memory.ReadAt(text, int64(address))
	text, _, _ = bytes.Cut(text[:n], []byte{0})
	return string(text)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
