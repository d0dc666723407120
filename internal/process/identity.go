package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// Identity identifies one process, also after its end, because no other process has all four.
type Identity struct {
	// PID is its process ID in its PID namespace.
	PID int
	// Started is its start in clock ticks since the boot, as in proc_pid_stat(5).
	Started uint64
	// Boot is the ID of the boot, and Namespace that of the PID namespace (pid_namespaces(7)).
	Boot, Namespace string
}

// Self returns the identity of this process.
func Self() (Identity, error) { return Of(os.Getpid()) }

// Of returns the identity of a process that this one sees. The error is ErrEnded if there is none.
func Of(pid int) (Identity, error) {
	namespace, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", "pid"))
	if err != nil {
		return Identity{}, identityError(pid, err)
	}
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return Identity{}, identityError(pid, err)
	}
	stat, err := proc.Stat()
	if err != nil {
		return Identity{}, identityError(pid, err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, identityError(pid, err)
	}
	return Identity{PID: pid, Started: stat.Starttime, Boot: strings.TrimSpace(string(boot)), Namespace: namespace}, nil
}

func identityError(pid int, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ErrEnded
	}
	return fmt.Errorf("identifying process %d: %w", pid, err)
}

// ErrForeign is returned for a process of another PID namespace.
var ErrForeign = errors.New("it is in another PID namespace")

// Local fails with ErrForeign if a process is not in the PID namespace of this one. A process of a container is not,
// although this one sees it.
func Local(pid int) error {
	self, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return fmt.Errorf("finding the PID namespace: %w", err)
	}
	other, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", "pid"))
	if err != nil {
		return identityError(pid, err)
	}
	if other != self {
		return ErrForeign
	}
	return nil
}
