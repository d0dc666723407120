package statedir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFileAtomic replaces a file so that after a crash of this process or of the machine it has either its old or its
// new content. The directory must exist. The name of the temporary file beside it starts with a dot; one that remains
// after a crash is harmless.
func WriteFileAtomic(path string, data []byte, mode fs.FileMode) (err error) {
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	tmp, err := os.CreateTemp(dir, "."+name+".tmp-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", path, errors.Join(err, removeIfThere(tmp.Name())))
		}
	}()
	if err := fill(tmp, data, mode); err != nil {
		return errors.Join(err, tmp.Close())
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// WriteIfChanged is WriteFileAtomic for a file that is written at each start: a file that has the content and the mode
// stays, also on a disk that is full or read-only.
func WriteIfChanged(path string, data []byte, mode fs.FileMode) error {
	if info, err := os.Lstat(path); err == nil && info.Mode() == mode {
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
			return nil
		}
	}
	return WriteFileAtomic(path, data, mode)
}

// ReplaceFile replaces a file so that readers, also after a crash of this process, see either its old or its new
// content. It does not wait for the disk: after a crash of the machine the file may have either content, be empty, or
// be missing. The directory must exist. There may be only one writer at a time.
func ReplaceFile(path string, data []byte, mode fs.FileMode) error {
	tmp := path + ".tmp"
	err := os.WriteFile(tmp, data, mode)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(tmp)) // on a full disk a half-written file would take the space that is left
	}
	return nil
}

func fill(file *os.File, data []byte, mode fs.FileMode) error {
	if _, err := file.Write(data); err != nil {
		return err
	}
	if err := file.Chmod(mode); err != nil {
		return err
	}
	return file.Sync()
}

// syncDir makes a rename in a directory durable. Without it, the old file may reappear after a crash of the machine.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
