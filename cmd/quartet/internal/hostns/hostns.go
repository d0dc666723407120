// Package hostns lets a command in a container act in the machine's mount namespace, to which a container runtime and
// its mounts belong. The container needs the machine's PID namespace (`pid: host`), CAP_SYS_ADMIN, CAP_SYS_CHROOT and
// CAP_SYS_PTRACE. Only the two commands that set up a machine for the four services use it, and none of the four.
package hostns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// parentProc returns a file in /proc of the parent process: the container engine's shim, which is in the mount
// namespace where the engine looks for bind mounts. The machine's first process is in the same namespace, but
// inaccessible on some machines.
func parentProc(name string) string { return filepath.Join("/proc", strconv.Itoa(os.Getppid()), name) }

// Path returns the path in the container for a path of the machine.
func Path(path string) string { return filepath.Join(parentProc("root"), path) }

// Do calls do in the machine's mount namespace. do must not start goroutines that access files, because they would run
// in the container's namespace. The error names the missing privileges.
func Do(do func() error) error {
	result := make(chan error, 1)
	go func() {
		// The thread is never unlocked, so that it ends with this goroutine and no other code runs in the namespace.
		runtime.LockOSThread()
		if err := enter(); err != nil {
			result <- err
			return
		}
		result <- do()
	}()
	return <-result
}

// Exec replaces this process by a program of the machine, in the machine's mount namespace. It returns only on failure.
func Exec(path string, args, env []string) error {
	runtime.LockOSThread()
	if err := enter(); err != nil {
		return err
	}
	if err := unix.Exec(path, args, env); err != nil {
		return fmt.Errorf("starting %s on the machine: %w", path, err)
	}
	return nil
}

// enter moves the calling thread. A thread that shares its working directory with others cannot change its mount
// namespace.
func enter() (err error) {
	namespace, err := os.Open(parentProc("ns/mnt"))
	if err != nil {
		return fmt.Errorf(
			"opening the machine's mount namespace: %w: give the container pid: host, CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE",
			err,
		)
	}
	defer func() { err = errors.Join(err, namespace.Close()) }()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leaving the container's root: %w", err)
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf(
			"entering the machine's mount namespace: %w: give the container pid: host, CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE",
			err,
		)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("entering the machine's root: %w", err)
	}
	return nil
}
