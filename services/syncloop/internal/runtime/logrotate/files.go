package logrotate

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/containerlog"
)

// settled is the time without a write after which a file is compressed. It was rotated at least one interval, three
// seconds, earlier, unless a process was killed in between.
const settled = time.Second

// sizeOf returns the size of a file; missing if it does not exist.
func sizeOf(path string) (int64, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return missing, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Usage returns the total size in bytes of the files in a folder of logs; 0 if the folder does not exist. It fails if
// the folder cannot be listed, because the size is then not known.
func Usage(dir string) (bytes int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed just now
		case err != nil:
			return 0, err
		case info.Mode().IsRegular():
			bytes += info.Size()
		}
	}
	return bytes, nil
}

// taken reports whether a file of the log was rotated in the same second, in any of its forms, or whether that is not
// known.
func taken(rotated string) bool {
	for _, path := range []string{rotated, containerlog.CompressedPath(rotated), containerlog.TemporaryPath(rotated)} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// removeAll removes files.
func removeAll(paths []string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// putBack renames a rotated file back to the current file. It fails with fs.ErrExist if a current file exists: a
// runtime that did not respond may have created it, and it may contain lines.
func putBack(rotated, log string) error {
	err := unix.Renameat2(unix.AT_FDCWD, rotated, unix.AT_FDCWD, log, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// The file system has no atomic rename without replacement.
		if _, err := os.Lstat(log); err == nil {
			return fmt.Errorf("put %s back: %w", rotated, fs.ErrExist)
		}
		err = os.Rename(rotated, log)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed with its pod
	}
	if err != nil {
		return fmt.Errorf("put %s back: %w", rotated, err)
	}
	return nil
}

// compress replaces a rotated file by its compressed form with the same mode, owner and time. It skips a file that was
// written to recently.
func compress(ctx context.Context, path string, now time.Time) (err error) {
	from, err := os.Open(filepath.Clean(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed with its pod
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if now.Sub(info.ModTime()).Abs() < settled {
		return nil
	}
	temporary := containerlog.TemporaryPath(path)
	if err := writeCompressed(ctx, temporary, from, info); err != nil {
		return errors.Join(fmt.Errorf("compress %s: %w", path, err), removeAll([]string{temporary}))
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return removeAll([]string{temporary}) // removed in the meantime as the oldest file
	}
	if err := os.Rename(temporary, containerlog.CompressedPath(path)); err != nil {
		return errors.Join(err, removeAll([]string{temporary}))
	}
	return removeAll([]string{path})
}

// writeCompressed writes the compressed form of a file and syncs it to the disk, because the file is removed next.
func writeCompressed(ctx context.Context, path string, from io.Reader, info fs.FileInfo) (err error) {
	to, err := os.OpenFile(filepath.Clean(path), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	zip := gzip.NewWriter(to)
	if _, err := io.Copy(zip, &cancelable{ctx: ctx, from: from}); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := to.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	if err := to.Sync(); err != nil {
		return err
	}
	return os.Chtimes(path, info.ModTime(), info.ModTime())
}

// cancelable is a file whose reads fail after its context has ended.
type cancelable struct {
	ctx  context.Context //nolint:containedctx // io.Reader has no place for it
	from io.Reader
}

// Read implements io.Reader.
func (c *cancelable) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.from.Read(p)
}
