// Command init is the first process of a virtual machine of tests: it mounts the kernel's file systems, loads modules,
// runs one program and powers the machine off. Package boot has what it reads and writes.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/vm/boot"
)

// mounts are the file systems that a program expects, in the order of their mounts.
var mounts = []struct{ kind, place, options string }{
	{"devtmpfs", "/dev", ""},
	{"proc", "/proc", ""},
	{"sysfs", "/sys", ""},
	{"cgroup2", "/sys/fs/cgroup", ""},
	{"securityfs", "/sys/kernel/security", ""},
	{"tmpfs", "/tmp", "mode=1777"},
	{"tmpfs", "/run", "mode=755"},
	{"tmpfs", "/dev/shm", "mode=1777"},
	{"devpts", "/dev/pts", ""},
}

func main() {
	// Without them nobody can be told.
	err := errors.Join(mount(mounts[0].kind, mounts[0].place, ""))
	code := 0
	if err == nil {
		code, err = run()
	}
	report(code, err)
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("init: power off:", err)
	}
	select {} // the kernel panics when its first process ends
}

// run prepares the machine and runs the program. It returns the program's exit code.
func run() (int, error) {
	for _, m := range mounts[1:] {
		if err := mount(m.kind, m.place, m.options); err != nil {
			return 0, err
		}
	}
	var config boot.Config
	content, err := os.ReadFile(boot.ConfigPath)
	if err == nil {
		err = json.Unmarshal(content, &config)
	}
	if err != nil {
		return 0, err
	}
	for _, path := range config.Modules {
		if err := load(path); err != nil {
			return 0, fmt.Errorf("load the module %s: %w", path, err)
		}
	}
	if err := raiseLoopback(); err != nil {
		return 0, fmt.Errorf("raise the loopback interface: %w", err)
	}
	return execute(config)
}

func mount(kind, place, options string) error {
	if err := os.MkdirAll(place, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(kind, place, kind, 0, options); err != nil {
		return fmt.Errorf("mount %s: %w", place, err)
	}
	return nil
}

func load(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	err = unix.FinitModule(int(file.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		err = nil
	}
	return errors.Join(err, file.Close())
}

// raiseLoopback lets the machine reach itself at 127.0.0.1.
func raiseLoopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	request, err := unix.NewIfreq("lo")
	if err == nil {
		request.SetUint16(unix.IFF_UP)
		err = unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
	}
	return errors.Join(err, unix.Close(socket))
}

// execute runs the program and waits for its end, and for that of the orphans of which this process is the parent.
func execute(config boot.Config) (int, error) {
	output, err := openPort(boot.Output)
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	process, err := os.StartProcess(config.Args[0], config.Args, &os.ProcAttr{
		Dir: "/", Env: config.Env, Files: []*os.File{null, output, output},
	})
	if err != nil {
		return 0, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR), err == nil && pid != process.Pid:
		case err != nil:
			return 0, fmt.Errorf("wait for the program: %w", err)
		case status.Signaled():
			return 128 + int(status.Signal()), drain(output)
		default:
			return status.ExitStatus(), drain(output)
		}
	}
}

// openPort opens a serial port that prints bytes as they are.
func openPort(path string) (*os.File, error) {
	port, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	settings, err := unix.IoctlGetTermios(int(port.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	settings.Oflag &^= unix.OPOST
	return port, unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, settings)
}

// drain waits until everything is printed.
func drain(port *os.File) error { return unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1) }

// report prints the result. What cannot be printed there is in the kernel's log.
func report(code int, err error) {
	status := fmt.Sprint(boot.StatusPrefix, code, "\n")
	if err != nil {
		status = fmt.Sprint(boot.StatusPrefix, err, "\n")
	}
	port, err := openPort(boot.Status)
	if err == nil {
		_, err = port.WriteString(status)
	}
	if err == nil {
		err = drain(port)
	}
	if err != nil {
		fmt.Println("init:", status, err)
	}
}
