// Command init is the first process of a virtual machine of tests: it loads modules, mounts the root and the kernel's
// file systems, runs one program and powers the machine off. Package boot has what it reads and writes.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/vm/boot"
)

// hostname is the name of the machine. The kernel's own is no name of a host.
const hostname = "machine"

// mountpoint is a file system of the kernel in its place.
type mountpoint struct{ kind, place, options string }

// mounts are the file systems that a program expects, in the order of their mounts.
var mounts = []mountpoint{
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
	// Without it nobody can be told.
	err := mountAll(mounts[:1])
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
	rest := mounts[1:]
	if config.Root != "" {
		if err := switchRoot(config.Root); err != nil {
			return 0, fmt.Errorf("change to the root file system of %s: %w", config.Root, err)
		}
		rest = mounts
	}
	if err := mountAll(rest); err != nil {
		return 0, err
	}
	if config.Root != "" { // the kernel's first file system cannot be shared
		if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
			return 0, fmt.Errorf("share the mounts with containers, as systemd does: %w", err)
		}
	}
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return 0, fmt.Errorf("set the host name: %w", err)
	}
	if err := raiseLoopback(); err != nil {
		return 0, fmt.Errorf("raise the loopback interface: %w", err)
	}
	if err := say(boot.Begun); err != nil {
		return 0, fmt.Errorf("report the start of the program: %w", err)
	}
	return execute(config)
}

// switchRoot makes the file system of a disk the root of this process and of those that it starts.
func switchRoot(device string) error {
	const place = "/disk"
	if err := os.Mkdir(place, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(device, place, "ext4", 0, ""); err != nil {
		return err
	}
	if err := os.Chdir(place); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

func mountAll(all []mountpoint) error {
	for _, m := range all {
		if err := mount(m.kind, m.place, m.options); err != nil {
			return err
		}
	}
	return nil
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
		Dir: "/", Env: append(config.Env, boot.Variable+"="+os.Getenv(boot.Variable)),
		Files: []*os.File{null, output, output},
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

// drain waits until everything is printed. The end of an orphan is a signal, which interrupts the call.
func drain(port *os.File) error {
	for {
		if err := unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// report prints the result. What cannot be printed there is in the kernel's log.
func report(code int, err error) {
	status := fmt.Sprint(boot.StatusPrefix, code)
	if err != nil {
		status = fmt.Sprint(boot.StatusPrefix, err)
	}
	if err := say(status); err != nil {
		fmt.Println("init:", status, err)
	}
}

// say prints a line for the harness.
func say(line string) error {
	port, err := openPort(boot.Status)
	if err != nil {
		return err
	}
	_, err = port.WriteString(line + "\n")
	return errors.Join(err, drain(port), port.Close())
}
