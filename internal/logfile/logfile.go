// Package logfile opens the log files of background processes. It rotates them at the start only, because the output of
// a running process cannot be redirected.
package logfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// MaxBytes is the size from which a file is rotated at the next start.
	MaxBytes = 32 << 20
	// mode lets only root read logs, because they may quote the output of pods.
	mode = 0o600
)

// Open opens a file to append to. It first renames a file of MaxBytes or more to PATH.1, which it replaces.
func Open(path string) (*os.File, error) {
	switch info, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("opening the log: %w", err)
	case info.Size() >= MaxBytes:
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("rotating the log: %w", err)
		}
	}
	file, err := os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_WRONLY|os.O_APPEND, mode)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	return file, nil
}
