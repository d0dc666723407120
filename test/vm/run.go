package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quartet-node/quartet/test/vm/boot"
)

// qemu emulates the machine.
const qemu = "qemu-system-x86_64"

// errHung is the error of a machine that has not begun with its program in time. An emulated kernel rarely hangs at its
// start with all processors busy, so it is tried up to maxTries times.
var errHung = errors.New("the machine hung at its start")

const maxTries = 3

// diskModules are needed by a machine with disks.
var diskModules = []string{"virtio_pci", "virtio_blk"}

// binDir returns the directory of the built programs.
func binDir() (string, error) {
	if dir := os.Getenv("QUARTET_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	module, err := goCommand("env", "GOMOD")
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(strings.TrimSpace(module)), "bin"), nil
}

// goCommand runs the go command in the directory of the test, for programs without cgo.
func goCommand(args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s%s", err, out, exit.Stderr)
		}
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// buildTest builds the tests of this package as a static program.
func buildTest(path string) error {
	_, err := goCommand("test", "-c", "-vet=off", "-ldflags=-s -w", "-o", path, ".")
	return err
}

// buildInit builds the init of the machines.
func buildInit(path string) error {
	_, err := goCommand("build", "-ldflags=-s -w", "-o", path, "github.com/quartet-node/quartet/test/vm/init")
	return err
}

// missing returns what this machine lacks to run a machine; nil if nothing.
func (m Machine) missing() error {
	bin, err := binDir()
	if err != nil {
		return err
	}
	needed := append([]string{filepath.Join(bin, "vm", "vmlinuz"), initramfsTool(bin)}, m.Programs...)
	disks := m.Disks
	if m.Root != nil {
		needed = slices.AppendSeq(needed, maps.Values(m.Root.Files))
		disks = append([]Disk{{Format: rootFormat()}}, disks...)
	}
	for _, file := range needed {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("%w: run make build test-tools, on Debian or Ubuntu for amd64", err)
		}
	}
	programs := []string{qemu}
	for _, disk := range disks {
		if len(disk.Format) > 0 {
			programs = append(programs, disk.Format[0])
		}
	}
	for _, program := range programs {
		if _, err := lookPath(program); err != nil {
			return fmt.Errorf("%w: run make test-tools", err)
		}
	}
	return nil
}

func initramfsTool(bin string) string { return filepath.Join(bin, "tools", "initramfs") }

// lookPath also finds the programs of administrators.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, program))
		}
	}
	if err != nil {
		return "", fmt.Errorf("this machine has no %s", program)
	}
	return path, nil
}

// run is a machine with its files.
type run struct {
	Machine

	dir string
	// bin is the directory of the kernel and the tools.
	bin string
}

func (r *run) path(name string) string { return filepath.Join(r.dir, name) }

// makeFiles makes the archive of the machine's first file system and the directory of its root's.
func (r *run) makeFiles(ctx context.Context, program string, args []string) error {
	var err error
	if r.bin, err = binDir(); err != nil {
		return err
	}
	if err := buildInit(r.path("init")); err != nil {
		return err
	}
	config := boot.Config{Args: append([]string{boot.Program}, args...), Env: []string{
		"CI=true", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "TMPDIR=/tmp",
	}}
	first := []string{
		"-out", r.path("initramfs"), "-file", r.path("init") + "=/init", "-file", r.path("config") + "=" + boot.ConfigPath,
	}
	root := []string{"-file", program + "=" + boot.Program}
	for _, program := range r.Programs {
		root = append(root, "-program", program)
	}
	if r.Root == nil {
		first = append(first, root...)
	} else {
		config.Root = "/dev/vda"
		if err := r.makeRoot(ctx, root); err != nil {
			return err
		}
	}
	folder := filepath.Join(r.bin, "vm", "modules")
	modules, err := resolve(folder, r.moduleNames())
	if err != nil {
		return err
	}
	for _, module := range modules {
		place := "/modules/" + module
		config.Modules = append(config.Modules, place)
		first = append(first, "-file", filepath.Join(folder, module)+"="+place)
	}
	encoded, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.path("config"), encoded, 0o600); err != nil {
		return err
	}
	return command(ctx, initramfsTool(r.bin), first...)
}

// moduleNames returns the modules of the machine, those of its disks first.
func (r *run) moduleNames() []string {
	var names []string
	if len(r.Disks) > 0 {
		names = append(names, diskModules...)
	}
	if r.Root != nil {
		names = append(names, "ext4")
	}
	return append(names, r.Modules...)
}

// makeRoot makes the directory that the first disk is filled with, and adds the disk.
func (r *run) makeRoot(ctx context.Context, flags []string) error {
	dir := r.path("root")
	for place, file := range r.Root.Files {
		flags = append(flags, "-file", file+"="+place)
	}
	if err := command(ctx, initramfsTool(r.bin), append([]string{"-dir", dir}, flags...)...); err != nil {
		return err
	}
	r.Disks = append([]Disk{{MiB: r.Root.MiB, Format: append(rootFormat(), "-d", dir)}}, r.Disks...)
	return nil
}

// rootFormat returns the command that makes a root file system.
func rootFormat() []string { return []string{"mkfs.ext4", "-q"} }

// command runs a command. Its output is in the error.
func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

func (r *run) diskPath(i int) string { return r.path("disk" + strconv.Itoa(i)) }

// makeDisks makes the disks with their file systems.
func (r *run) makeDisks(ctx context.Context) error {
	for i, disk := range r.Disks {
		if err := os.WriteFile(r.diskPath(i), nil, 0o600); err != nil {
			return err
		}
		if err := os.Truncate(r.diskPath(i), disk.MiB<<20); err != nil {
			return err
		}
		if len(disk.Format) == 0 {
			continue
		}
		program, err := lookPath(disk.Format[0])
		if err != nil {
			return err
		}
		if err := command(ctx, program, append(append([]string{}, disk.Format[1:]...), r.diskPath(i))...); err != nil {
			return err
		}
	}
	return nil
}

// arguments returns those of qemu for a start of the machine.
func (r *run) arguments(start int) []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "pc", "-accel", "tcg,thread=multi",
		"-cpu", "max", "-smp", strconv.Itoa(r.CPUs), "-m", strconv.Itoa(r.MemoryMiB),
		"-kernel", filepath.Join(r.bin, "vm", "vmlinuz"), "-initrd", r.path("initramfs"),
		// Without no_timer_check the kernel panics at its start when the emulated timer is late on a busy machine.
		"-append", strings.Join(append([]string{"console=ttyS0", "panic=-1", "mitigations=off", "no_timer_check",
			fmt.Sprintf("%s=%d", boot.Variable, start)}, r.Kernel...), " "),
	}
	for _, port := range []string{"kernel", "output", "status"} { // in the order of boot.Output and boot.Status
		file := fmt.Sprintf("file,id=%s,path=%s,append=on", port, r.path(port))
		args = append(args, "-chardev", file, "-serial", "chardev:"+port)
	}
	for node := range r.NUMANodes {
		cpus := r.CPUs / r.NUMANodes
		memory := fmt.Sprintf("memory-backend-ram,id=memory%d,size=%dM", node, r.MemoryMiB/r.NUMANodes)
		args = append(args, "-object", memory,
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%d-%d,memdev=memory%d", node, node*cpus, (node+1)*cpus-1, node))
	}
	for i := range r.Disks {
		args = append(args, "-drive", fmt.Sprintf("file=%s,format=raw,if=none,cache=unsafe,id=disk%d", r.diskPath(i), i),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=disk%d", i))
	}
	return args
}

// start starts the machine, again when its program restarts it, and waits for its end.
func (r *run) start(ctx context.Context) (Result, error) {
	var errs bytes.Buffer
	// A test that is killed takes it along: Pdeathsig refers to the thread that has started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := time.Now()
	var err error
	var status string
	for start, tries := 1, 0; err == nil || errors.Is(err, errHung) && tries < maxTries; {
		if status, err = r.once(ctx, start, &errs); err != nil {
			tries++
		} else if start, tries = start+1, 0; status != boot.Restart {
			break
		}
	}
	result := Result{Output: r.read("output"), KernelLog: r.read("kernel"), Duration: time.Since(begin)}
	switch code, found := strings.CutPrefix(status, boot.StatusPrefix); {
	case found && err == nil:
		result.ExitCode, err = strconv.Atoi(code)
		if err != nil {
			err = fmt.Errorf("the machine could not run the program: %s", code)
		}
		return result, err
	case ctx.Err() != nil:
		err = fmt.Errorf("the machine has not ended within %v", r.Timeout)
	case err == nil:
		err = errors.New("the machine has ended without a result")
	}
	return result, fmt.Errorf("%w\n%s%s\nthe end of the kernel's log:\n%s", err, errs.String(), result.Output, tail(result.KernelLog))
}

// once runs the machine until it is switched off, and returns the last line of its status.
func (r *run) once(ctx context.Context, start int, output io.Writer) (string, error) {
	if err := os.RemoveAll(r.path("status")); err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hung := time.AfterFunc(r.startTimeout, func() {
		if r.read("status") == "" {
			cancel(errHung)
		}
	})
	defer hung.Stop()
	cmd := exec.CommandContext(ctx, qemu, r.arguments(start)...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	lines := strings.Split(strings.TrimSpace(r.read("status")), "\n")
	return lines[len(lines)-1], err
}

// read returns what a serial port has printed.
func (r *run) read(name string) string {
	content, err := os.ReadFile(r.path(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err.Error()
	}
	return string(content)
}
