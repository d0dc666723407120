package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// damagedSuffix is the suffix of a damaged file. Only the last one of a path is kept.
const damagedSuffix = ".damaged"

// DamagedError is the error of a file that cannot be read or has no valid content.
type DamagedError struct {
	// Path is the file, and Aside its new path; Aside is empty if the file could not be renamed.
	Path, Aside string
	err         error
}

// Error returns the reason, and where the file is now.
func (e *DamagedError) Error() string {
	if e.Aside == "" {
		return e.Path + " is damaged: " + e.err.Error()
	}
	return fmt.Sprintf("%s is damaged and is now %s: %v", e.Path, e.Aside, e.err)
}

// Unwrap returns the reason, and the error of the rename if it failed.
func (e *DamagedError) Unwrap() error { return e.err }

// SetAside renames a damaged file, so that a good one can take its place and the damage can be looked at. The result
// has the reason, which must not be nil.
func SetAside(path string, reason error) *DamagedError {
	aside, err := Rename(path)
	return &DamagedError{Path: path, Aside: aside, err: errors.Join(reason, err)}
}

// Rename renames a damaged file to PATH.damaged, and returns that; to PATH.1.damaged if something other than a file has
// that name, and so on. It returns an empty path if it fails.
func Rename(path string) (aside string, err error) {
	aside = asideOf(path)
	if err := os.Rename(path, aside); err != nil {
		return "", err
	}
	return aside, nil
}

// IsAside reports whether a file name is that of a file that was set aside.
func IsAside(name string) bool { return strings.HasSuffix(name, damagedSuffix) }

// LoadJSON reads a JSON file into a value that a failure may leave half filled. Unknown fields are ignored, because a
// later version may have written them. If there is no file, the error is fs.ErrNotExist. A file that cannot be read or
// parsed, or whose content is not valid, is set aside, and the error is a *DamagedError. Valid may be nil.
func LoadJSON(path string, into any, valid func() error) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err == nil && valid != nil {
		err = valid()
	}
	if err != nil {
		return SetAside(path, err)
	}
	return nil
}
