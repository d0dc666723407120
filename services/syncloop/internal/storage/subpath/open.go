package subpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// modeBits are the bits of a volume's root mode that a created directory inherits.
	modeBits = 0o777 | unix.S_ISVTX | unix.S_ISGID | unix.S_ISUID
	// mkdirBits are those of them that mkdir(2) sets. The kernel inherits the setgid bit from the parent.
	mkdirBits = 0o777 | unix.S_ISVTX
)

// openBefore is open whose wait ends with ctx.
func openBefore(ctx context.Context, volume, path string) (*os.File, error) {
	type result struct {
		file *os.File
		err  error
	}
	opened := make(chan result)
	go func() { // ends when the kernel answers
		file, err := open(volume, path)
		select {
		case opened <- result{file, err}:
		case <-ctx.Done():
			if err == nil {
				_ = file.Close() // the caller has stopped waiting
			}
		}
	}()
	select {
	case r := <-opened:
		return r.file, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// open opens a path below a volume for mounting. It resolves the links in the path first, and then opens the result
// without following links, so that a link that is created in the meantime makes it fail.
func open(volume, path string) (*os.File, error) {
	base, err := filepath.EvalSymlinks(volume)
	if err != nil {
		return nil, err
	}
	existing, missing, err := lookUp(base, path)
	if err != nil {
		return nil, err
	}
	relative, err := filepath.Rel(base, existing)
	if err == nil && !filepath.IsLocal(relative) {
		err = fmt.Errorf("subpath %q not within volume path %q", existing, base)
	}
	if err != nil {
		return nil, madeOrNot(missing, err)
	}
	root, err := unix.Open(base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: base, Err: err}
	}
	defer func() { _ = unix.Close(root) }() // it is only a location
	var info unix.Stat_t
	if err := unix.Fstat(root, &info); err != nil {
		return nil, &os.PathError{Op: "stat", Path: base, Err: err}
	}
	at, err := openBelow(root, relative, 0)
	if err != nil {
		return nil, madeOrNot(missing, &os.PathError{Op: "open", Path: existing, Err: err})
	}
	for _, name := range missing {
		next, err := makeBelow(at, name, info.Mode&modeBits)
		_ = unix.Close(at)
		if existing = filepath.Join(existing, name); err != nil {
			return nil, &MakeError{Err: &os.PathError{Op: "mkdir", Path: existing, Err: err}}
		}
		at = next
	}
	return os.NewFile(uintptr(at), existing), nil
}

// madeOrNot returns a MakeError if there was something to create.
func madeOrNot(missing []string, err error) error {
	if len(missing) > 0 {
		return &MakeError{Err: err}
	}
	return err
}

// lookUp resolves a path below a directory as far as it exists, and returns the existing part without links, and the
// missing rest.
func lookUp(base, path string) (existing string, missing []string, err error) {
	at := filepath.Join(base, path)
	for {
		existing, err = filepath.EvalSymlinks(at)
		if !errors.Is(err, fs.ErrNotExist) || at == base || !strings.HasPrefix(at, base) {
			slices.Reverse(missing)
			return existing, missing, err
		}
		missing = append(missing, filepath.Base(at))
		at = filepath.Dir(at)
	}
}

// openBelow opens a path below an open directory. It fails if the path contains a link, even at its end.
func openBelow(at int, path string, flags uint64) (int, error) {
	return unix.Openat2(at, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// makeBelow creates and opens a directory in an open one. An existing one, for example of another container of the pod,
// is fine; a link is not.
func makeBelow(at int, name string, mode uint32) (int, error) {
	err := mkdirat(at, name, mode&mkdirBits)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	made, openErr := openBelow(at, name, unix.O_DIRECTORY)
	if err != nil || openErr != nil {
		return made, openErr
	}
	if err := setMode(made, mode); err != nil {
		_ = unix.Close(made)
		return -1, err
	}
	return made, nil
}

// setMode sets the bits of a new directory's mode that mkdir(2) could not, if any: this is needed only if the parent's
// mode differs from the volume's. A process that is killed before leaves a directory without them.
func setMode(folder int, mode uint32) error {
	var info unix.Stat_t
	if err := unix.Fstat(folder, &info); err != nil {
		return err
	}
	if info.Mode&modeBits == mode {
		return nil
	}
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", folder), mode) // it is only a location
}

// mkdirat creates a directory with exactly this mode at once: a later change would leave a wrong mode if the process is
// killed in between, and might change another directory that a container has put there. A thread with its own umask
// avoids that of the process.
func mkdirat(at int, name string, mode uint32) error {
	made := make(chan error, 1)
	go func() { // ends with the call
		runtime.LockOSThread() // it is never unlocked, so that the thread ends too
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			made <- fmt.Errorf("unshare: %w", err)
			return
		}
		unix.Umask(0)
		made <- unix.Mkdirat(at, name, mode)
	}()
	return <-made
}
