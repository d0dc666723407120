package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// pidFileMode lets everyone read a process ID, and pidDirMode only root its directory.
	pidFileMode = 0o644
	pidDirMode  = 0o700
)

// writePID writes a PID file. It is for people: without it a process runs.
func writePID(path string, pid int) error {
	return statedir.Inform(func() error {
		if err := os.MkdirAll(filepath.Dir(path), pidDirMode); err != nil {
			return err
		}
		return statedir.ReplaceFile(path, fmt.Appendf(nil, "%d\n", pid), pidFileMode)
	})
}

// removePID removes a PID file that may be gone.
func removePID(path string) error {
	err := statedir.Inform(func() error { return os.Remove(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
