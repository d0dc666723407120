package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// MakeDir makes a directory that only the owner may read, in one that exists, so that a crash of the machine does not
// lose it. One that is there is left as it is.
func MakeDir(path string) error {
	if err := os.Mkdir(path, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making a directory: %w", err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("making %s last: %w", path, err)
	}
	return nil
}

// RemoveFile removes a file so that it does not come back with a crash of the machine. That it is not there is no error.
func RemoveFile(path string) error {
	if err := removeIfThere(path); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("making the removal of %s last: %w", path, err)
	}
	return nil
}
