// Package logfile opens the files that processes in the background write their output to. It keeps them from growing
// from one start to the next; a process that writes to its own standard output cannot be rotated under way.
package logfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// MaxBytes is the size from which a file is put aside at the next start.
	MaxBytes = 32 << 20
	// mode lets only root read: logs may quote what pods say.
	mode = 0o600
)

// Open opens a file to append to. One of MaxBytes or more becomes PATH.1 first, in the place of the one before.
func Open(path string) (*os.File, error) {
	switch info, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("opening the log: %w", err)
	case info.Size() >= MaxBytes:
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("putting the old log aside: %w", err)
		}
	}
	file, err := os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_WRONLY|os.O_APPEND, mode)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	return file, nil
}
