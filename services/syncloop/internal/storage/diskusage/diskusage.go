// Package diskusage measures what folders take of the disk that they are on. It is what the size limits of volumes, the usage of pods
// and the choice of pods to evict have in common.
package diskusage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// blockSize is the unit of the number of blocks of a file, whatever the file system's own are.
const blockSize = 512

// Usage is what a folder takes of its disk.
type Usage struct {
	// Bytes are those of the blocks that are in use, and Inodes how many files and folders there are, the folder itself included.
	Bytes, Inodes int64
}

// Add is both together.
func (u Usage) Add(more Usage) Usage {
	return Usage{Bytes: u.Bytes + more.Bytes, Inodes: u.Inodes + more.Inodes}
}

// Of measures what a folder takes with all in it: what is on another file system is not counted, nor a file
// twice that has several names. No link is followed, and a folder that is exchanged for a link meanwhile leads nowhere else. It fails
// with fs.ErrNotExist, and with the error of ctx.
func Of(ctx context.Context, path string) (used Usage, err error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return Usage{}, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	top, err := root.Stat(".")
	if err != nil {
		return Usage{}, err
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
		used = used.Add(Usage{Bytes: stat.Blocks * blockSize, Inodes: 1})
		return nil
	})
	return used, err
}
