// Package machine checks whether a machine can run a node. A check is a function of its inputs, which are passed in:
// the files below a root directory, and a few kernel calls. It changes nothing and returns a Finding with the remedy.
// `quartet doctor` runs all checks; package bundle runs those that the bundled runtime depends on before it starts.
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

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Machine provides the inputs of the checks. This returns the one that this process runs on; tests use their own.
type Machine struct {
	// Root is the directory below which /proc, /sys and every other path are looked up.
	Root string
	// EUID is the user of this process.
	EUID int
	// LookPath finds a program in PATH.
	LookPath func(name string) (string, error)
	// Statfs reads a file system's state; Access reports whether a path may be used in a mode (unix.W_OK).
	Statfs func(path string, stat *unix.Statfs_t) error
	Access func(path string, mode uint32) error
	// OpenFilesLimit returns the limit of open files of a process.
	OpenFilesLimit func() (uint64, error)
	// Adjtimex reads the state of the clock; Now reads the time.
	Adjtimex func(*unix.Timex) (int, error)
	Now      func() time.Time
}

// This returns the machine that this process runs on.
func This() Machine {
	return Machine{
		Root: "/", EUID: os.Geteuid(), LookPath: exec.LookPath, Statfs: unix.Statfs, Access: unix.Access,
		OpenFilesLimit: func() (uint64, error) {
			var limit unix.Rlimit
			// The hard limit counts, because Go and the services raise their soft limit to it.
			err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
			return limit.Max, err
		},
		Adjtimex: unix.Adjtimex, Now: time.Now,
	}
}

func (m Machine) path(parts ...string) string {
	return filepath.Join(append([]string{m.Root}, parts...)...)
}

// proc returns the machine's /proc.
func (m Machine) proc() (procfs.FS, error) { return procfs.NewFS(m.path("proc")) }

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

// existing returns the path itself, or its nearest existing ancestor, where it would be created.
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
