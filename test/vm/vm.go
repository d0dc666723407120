// Package vm runs a test in a virtual machine, for what the machine's own kernel may lack: quotas, file systems, an NFS
// client and server, pure cgroup v2. The machine is qemu without hardware support, with Debian's kernel and nothing but
// the test: it needs no root, and starts in five to ten seconds.
//
//	func TestQuotas(t *testing.T) {
//		if !vm.Inside(t, vm.Machine{Modules: []string{"xfs"}, Disks: []vm.Disk{{MiB: 512, Format: []string{"mkfs.xfs"}}}}) {
//			return
//		}
//		// Here the test is root of the machine, whose disk is /dev/vda.
//	}
//
// A whole node needs a Root. Such a machine may restart once or more while the test runs, see Restart.
//
// The test binary is built again, without cgo, and is the only program beside the init of folder init, which mounts the
// kernel's own file systems, loads the modules, runs the test and powers off. The machine's serial ports print the
// kernel's log, the test's output and its result.
package vm

import (
	"context"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/quartet-node/quartet/test/require"
)

// The defaults of a Machine.
const (
	defaultMemory  = 1024
	defaultCPUs    = 2
	defaultStart   = 2 * time.Minute
	defaultTimeout = 10 * time.Minute // an emulated processor beside other tests is slow
)

// Machine is a virtual machine. The zero value has no disk, 1 GiB of memory and no modules but those of its disks.
type Machine struct {
	// Modules are kernel modules by name, such as "xfs". What they depend on is loaded, too.
	Modules []string
	// Disks are the disks /dev/vda, /dev/vdb and so on.
	Disks []Disk
	// Root is a disk with the root file system, before the others: with it they begin at /dev/vdb. Without it the root
	// is in memory, and containers cannot run.
	Root *Root
	// Programs are programs of this machine with their absolute paths. They have the same paths in the machine.
	Programs []string
	// MemoryMiB is the size of the memory.
	MemoryMiB int
	// CPUs is the number of processors.
	CPUs int
	// NUMANodes is the number of NUMA nodes, which have equal parts of processors and memory; 0 is a machine without NUMA.
	NUMANodes int
	// Kernel are more parameters of the kernel.
	Kernel []string
	// Timeout bounds the machine's life.
	Timeout time.Duration

	// startTimeout bounds each start until the program begins.
	startTimeout time.Duration
}

// Disk is an empty disk with a file system.
type Disk struct {
	// MiB is its size. It takes no space until it is written.
	MiB int64
	// Format is the command that makes the file system; the path of the disk is added to it. None if it is empty.
	Format []string
}

// Root is the disk of the root file system.
type Root struct {
	// MiB is its size. It takes no space until it is written.
	MiB int64
	// Files are files of this machine by their absolute paths in the machine. They are executable.
	Files map[string]string
}

// Inside reports whether the test runs inside of the machine. Outside it runs the test in one, and takes over its
// result. It skips the test, with CI=true it fails it, when this machine has no qemu, kernel or tools of these tests.
func Inside(t *testing.T, m Machine) bool {
	t.Helper()
	if inside() {
		return true
	}
	require.NoError(t, m.missing())
	dir := t.TempDir()
	program := filepath.Join(dir, "test")
	if err := buildTest(program); err != nil {
		t.Fatal(err)
	}
	result, err := m.Run(t.Context(), dir, program, "-test.v", "-test.run=^"+regexp.QuoteMeta(t.Name())+"$")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the machine ran for %v:\n%s", result.Duration.Round(time.Millisecond), result.Output)
	if result.ExitCode != 0 {
		t.Fatalf("the test has failed in the machine with %d, see above; the end of the kernel's log:\n%s", result.ExitCode, tail(result.KernelLog))
	}
	return false
}

// Result is what a program has done in a machine.
type Result struct {
	ExitCode int
	// Output is the program's output and errors.
	Output string
	// KernelLog is the log of the kernel.
	KernelLog string
	// Duration is the machine's life.
	Duration time.Duration
}

// Run runs a static program in a machine, with a directory for its files. The error says that the program did
// not run, or has not ended in time.
func (m Machine) Run(ctx context.Context, dir, program string, args ...string) (Result, error) {
	if m.MemoryMiB == 0 {
		m.MemoryMiB = defaultMemory
	}
	if m.CPUs == 0 {
		m.CPUs = defaultCPUs
	}
	if m.Timeout == 0 {
		m.Timeout = defaultTimeout
	}
	if m.startTimeout == 0 {
		m.startTimeout = defaultStart
	}
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	r := run{Machine: m, dir: dir}
	if err := r.makeFiles(ctx, program, args); err != nil {
		return Result{}, err
	}
	if err := r.makeDisks(ctx); err != nil {
		return Result{}, err
	}
	return r.start(ctx)
}

// tail returns the end of a log.
func tail(log string) string {
	const length = 4000
	return log[max(0, len(log)-length):]
}
