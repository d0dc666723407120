package volumelimits

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// blockSize is the unit of the number of blocks of a file, whatever the file system's own are.
const blockSize = 512

// Usage measures how many bytes of the disk a folder takes with all in it: what is on another file system is not counted, nor a file
// twice that has several names. No link is followed, and a folder that is exchanged for a link meanwhile leads nowhere else. It fails
// with fs.ErrNotExist, and with the error of ctx.
func Usage(ctx context.Context, path string) (used int64, err error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	top, err := root.Stat(".")
	if err != nil {
		return 0, err
	}
	device := top.Sys().(*syscall.Stat_t).Dev //nolint:forcetypeassert // it is Linux
	counted := map[uint64]bool{}
	err = fs.WalkDir(root.FS(), ".", func(_ string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil { // it went while it was looked at, or cannot be looked into
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // it is Linux
		if stat.Dev != device {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.IsDir() && stat.Nlink > 1 {
			if counted[stat.Ino] {
				return nil
			}
			counted[stat.Ino] = true
		}
		used += stat.Blocks * blockSize
		return nil
	})
	return used, err
}
