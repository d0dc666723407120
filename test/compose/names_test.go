package compose

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
)

// namesOfTheirOwn tries, as the owner of a service would, to take the name of another one: as the user of its container
// without capabilities, and with the container's view of the files. syncloop is left out, because it is root.
func namesOfTheirOwn(s *stack) {
	for _, service := range []layout.Service{layout.ConfigMux, layout.PLEG, layout.NodeStatus} {
		process := s.inspect(s.container(service), "{{.State.Pid}}")
		uid := 0
		_, err := fmt.Sscan(promised[string(service)].user, &uid)
		s.must(err)
		for _, other := range layout.Services() {
			for what, try := range taking(string(other)) {
				err := inContainer(process, uid, try)
				if own := other == service && what != "rename the directory" && what != "use the place of v0.1.0"; own && err != nil {
					s.t.Errorf("%s may not %s of its own: %v", service, what, err)
				} else if !own && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EPERM) {
					s.t.Errorf("%s may %s of %s: %v", service, what, other, err)
				}
			}
		}
	}
	for _, service := range layout.Services() {
		s.awaitHealth(s.container(service), string(service)+": serving")
	}
}

// taking returns what takes the name of a service, by what it is. Each works in the directory of all sockets, and
// undoes what it could do.
func taking(service string) map[string]func(dir int) error {
	socket := filepath.Join(service, service+".sock")
	bind := func(name string) func(int) error {
		return func(dir int) error {
			err := unix.Mknodat(dir, name, unix.S_IFSOCK|0o600, 0)
			if err == nil {
				return unix.Unlinkat(dir, name, 0)
			}
			return err
		}
	}
	move := func(from, to string) func(int) error {
		return func(dir int) error {
			err := unix.Renameat(dir, from, dir, to)
			if err == nil {
				return unix.Renameat(dir, to, dir, from)
			}
			return err
		}
	}
	return map[string]func(int) error{
		"bind a name":             bind(filepath.Join(service, "taken.sock")),
		"rename the socket":       move(socket, socket+".away"),
		"rename the directory":    move(service, service+".away"),
		"use the place of v0.1.0": move(service+".sock", service+".sock.away"),
	}
}

// inContainer calls a function as a user without capabilities of the services' group, with the directory of the sockets
// as a container sees it.
func inContainer(process string, uid int, try func(dir int) error) error {
	dir, err := unix.Open(filepath.Join("/proc", process, "root", layout.DefaultRunDir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the directory of the sockets: %w", err)
	}
	defer unix.Close(dir) //nolint:errcheck // nothing was written to it
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		const group, none = 10240, ^uintptr(0)
		_, _, groupsErr := syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0)
		_, _, groupErr := syscall.RawSyscall(syscall.SYS_SETRESGID, none, group, none)
		_, _, userErr := syscall.RawSyscall(syscall.SYS_SETRESUID, none, uintptr(uid), none)
		for _, errno := range []syscall.Errno{groupsErr, groupErr, userErr} {
			if errno != 0 {
				result <- os.NewSyscallError("becoming the container's user", errno)
				return
			}
		}
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var nothing [2]unix.CapUserData
		if err := unix.Capset(&header, &nothing[0]); err != nil {
			result <- err
			return
		}
		result <- try(dir)
	}()
	return <-result
}
