package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFileAtomic puts data into a file so that after a crash, of this process or of the machine, the file is there
// whole with its old or its new content. The directory must exist. The temporary file beside it has a name that starts
// with a dot; one that a crash left behind does no harm.
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

// ReplaceFile puts data into a file so that a reader, and who comes after a crash of this process, sees its old or its new
// content. It waits for no disk: after a crash of the machine the file may have either, be empty, or not be there. The directory
// must exist; one writer at a time.
func ReplaceFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.WriteFile(path+".tmp", data, mode); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
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

// syncDir makes a rename in a directory durable: without it the machine may come back with the old file.
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
