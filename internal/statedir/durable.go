package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MakeDir durably creates a directory that only its owner may read. The parent must exist. It leaves an existing
// directory unchanged.
func MakeDir(path string) error {
	info, err := os.Stat(path)
	isThere := err == nil && info.IsDir()
	if !isThere { // a disk that fails must not be asked for what is there
		if err := os.Mkdir(path, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making a directory: %w", err)
		}
	}
	err = syncDir(filepath.Dir(path))
	if isThere && errors.Is(err, unix.EROFS) { // an ext4 with an error refuses it, though nothing can be lost any more
		return nil
	}
	if err != nil {
		return fmt.Errorf("syncing %s to disk: %w", path, err)
	}
	return nil
}

// RemoveFile durably removes a file. A missing file is no error.
func RemoveFile(path string) error {
	if err := removeIfThere(path); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("syncing the removal of %s to disk: %w", path, err)
	}
	return nil
}
