// Package pidlimit reads the limit of processes and threads of the machine, and how many there are. Since Linux 6.14
// each PID namespace has its own pid_max, so a process in another namespace, for example in a container, cannot read
// the machine's. `quartet prepare`, which runs in the machine's namespace, saves it in a file for the services.
package pidlimit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// file is the name of the file in the state directory of a service.
	file = "machine-pid-max"
	// fileMode lets every service read the file, regardless of its user.
	fileMode = 0o644
	// machineNamespace is the kernel's initial PID namespace.
	machineNamespace = "pid:[4026531836]"

	pidMax     = "sys/kernel/pid_max"
	threadsMax = "sys/kernel/threads-max"
)

// Save writes the machine's pid_max for a service with this state directory. proc is /proc. In another PID namespace,
// where the machine's value is unknown, it is a no-op.
func Save(proc, stateDir string) error {
	if !inMachineNamespace(proc) {
		return nil
	}
	n, err := read(filepath.Join(proc, pidMax))
	if err != nil {
		return err
	}
	return statedir.WriteIfChanged(filepath.Join(stateDir, file), fmt.Appendf(nil, "%d\n", n), fileMode)
}

// Read returns the limit: the lowest of pid_max, threads-max, and, in another PID namespace, the machine's pid_max from
// Save.
func Read(proc, stateDir string) (int64, error) {
	files := []string{filepath.Join(proc, pidMax), filepath.Join(proc, threadsMax)}
	if !inMachineNamespace(proc) {
		files = append(files, filepath.Join(stateDir, file))
	}
	var lowest int64
	for i, name := range files {
		n, err := read(name)
		if i == 2 && errors.Is(err, fs.ErrNotExist) {
			continue // the machine has not been prepared
		}
		if err != nil {
			return 0, err
		}
		if lowest == 0 || n < lowest {
			lowest = n
		}
	}
	return lowest, nil
}

// Running returns how many processes and threads there are: the second number in the fourth word of loadavg,
// "RUNNABLE/ALL". procfs reads only the words before it.
func Running(proc string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(proc, "loadavg"))
	if err != nil {
		return 0, fmt.Errorf("reading how many processes run: %w", err)
	}
	if words := strings.Fields(string(text)); len(words) >= 4 {
		if _, all, found := strings.Cut(words[3], "/"); found {
			if n, err := strconv.ParseInt(all, 10, 64); err == nil {
				return n, nil
			}
		}
	}
	return 0, fmt.Errorf("reading how many processes run: %q is not what loadavg has", strings.TrimSpace(string(text)))
}

func inMachineNamespace(proc string) bool {
	name, err := os.Readlink(filepath.Join(proc, "self/ns/pid"))
	return err == nil && name == machineNamespace
}

func read(name string) (int64, error) {
	text, err := os.ReadFile(filepath.Clean(name))
	if err != nil {
		return 0, fmt.Errorf("reading how many processes the machine allows: %w", err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf(
			"reading how many processes the machine allows: %s has %q",
			name,
			strings.TrimSpace(string(text)),
		)
	}
	return n, nil
}
