// Package recordfile has what the formats of recordings share: how a file is created, how lines are written and read,
// and the error that names a line.
package recordfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Mode lets only the owner read a recording, because what is known of pods may be confidential.
const Mode = 0o600

// Error is a problem in a line of a recording.
type Error struct {
	// File is the name of the recording.
	File string
	// Line is the line number, counted from 1.
	Line int
	// Problem describes the problem and its remedy.
	Problem string
}

// Error returns "FILE:LINE: PROBLEM".
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Problem) }

// Create creates a file, and replaces another one only with force. The replacement is a new file, so that readers and
// permissions of the old one do not apply.
func Create(path string, force bool) (*os.File, error) {
	if force {
		switch info, err := os.Lstat(path); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is no regular file, and is not replaced: name another", path)
		default:
			if err := os.Remove(path); err != nil {
				return nil, err
			}
		}
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, Mode)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s is there already: name another file, or replace it with --force", path)
	}
	return file, err
}
