// Package diskusage measures the disk usage of directories, for the size limits of volumes, the usage of pods and the
// selection of pods to evict.
package diskusage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// blockSize is the unit of a file's number of blocks, regardless of the file system's block size.
const blockSize = 512

// Usage is the disk usage of a directory.
type Usage struct {
	// Bytes is the size of the allocated blocks, and Inodes the number of files and directories, including the directory
	// itself.
	Bytes, Inodes int64
}

// Add returns the sum.
func (u Usage) Add(more Usage) Usage {
	return Usage{Bytes: u.Bytes + more.Bytes, Inodes: u.Inodes + more.Inodes}
}

// Of measures a directory with its content, except other file systems; a file with several names counts once. It
// follows no links, even if a directory is replaced by a link in the meantime. It fails with fs.ErrNotExist, and with
// the error of ctx.
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
		if err != nil { // it disappeared, or cannot be read
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
