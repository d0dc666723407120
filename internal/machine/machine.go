// Package machine checks whether a machine can run a node. A check is a function of what it reads, which is passed in: the
// files below a root directory, and a few calls to the kernel. It changes nothing and ends with a Finding that says what
// to do. `quartet doctor` makes all checks; package bundle makes those whose outcome the bundled runtime depends on before
// it starts.
package machine

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is what the checks look at. Make the one that this process runs on with This; tests look at one of their own.
type Machine struct {
	// Root is the directory that /proc, /sys and every other path are looked up in.
	Root string
	// EUID is the user of this process.
	EUID int
	// LookPath finds a program.
	LookPath func(name string) (string, error)
	// Statfs reads a file system, Access whether a path may be used so (unix.W_OK).
	Statfs func(path string, stat *unix.Statfs_t) error
	Access func(path string, mode uint32) error
	// OpenFilesLimit is how many files a process may open at most.
	OpenFilesLimit func() (uint64, error)
	// Adjtimex reads the state of the clock, Now the time.
	Adjtimex func(*unix.Timex) (int, error)
	Now      func() time.Time
}

// This is the machine that this process runs on.
func This() Machine {
	return Machine{
		Root: "/", EUID: os.Geteuid(), LookPath: exec.LookPath, Statfs: unix.Statfs, Access: unix.Access,
		OpenFilesLimit: func() (uint64, error) {
			var limit unix.Rlimit
			// The hard limit: Go raises its own soft one to it, and so do the services.
			err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
			return limit.Max, err
		},
		Adjtimex: unix.Adjtimex, Now: time.Now,
	}
}

func (m Machine) path(parts ...string) string {
	return filepath.Join(append([]string{m.Root}, parts...)...)
}

func (m Machine) read(path string) (string, error) {
	content, err := os.ReadFile(m.path(path))
	return strings.TrimSpace(string(content)), err
}

func (m Machine) number(path string) (int64, error) {
	text, err := m.read(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// existing is the path itself, or the nearest directory above it that is there: where it would be made.
func (m Machine) existing(path string) (string, error) {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		_, err := os.Stat(m.path(at))
		if err == nil {
			return at, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return "", err
		}
	}
}
