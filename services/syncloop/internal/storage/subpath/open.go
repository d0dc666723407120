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
	// modeBits are those of a volume's root that a folder which is made below it gets.
	modeBits = 0o777 | unix.S_ISVTX | unix.S_ISGID | unix.S_ISUID
	// mkdirBits are those of them that mkdir(2) sets. That of the group the kernel hands on from the folder above.
	mkdirBits = 0o777 | unix.S_ISVTX
)

// openBefore is open, but for its waiting: that ends with ctx.
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
				_ = file.Close() // nobody waits for it
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

// open opens what is at a path below a volume, for nothing but to be mounted. Where the links in the path lead is looked up first; what
// that comes to is opened without following any, so that a link which is put there meanwhile makes it fail.
func open(volume, path string) (*os.File, error) {
	base, err := filepath.EvalSymlinks(volume)
	if err != nil {
		return nil, err
	}
	existing, missing, err := lookUp(base, path)
	if err != nil {
		return nil, err
	}
	within, err := filepath.Rel(base, existing)
	if err == nil && !filepath.IsLocal(within) {
		err = fmt.Errorf("subpath %q not within volume path %q", existing, base)
	}
	if err != nil {
		return nil, madeOrNot(missing, err)
	}
	root, err := unix.Open(base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: base, Err: err}
	}
	defer func() { _ = unix.Close(root) }() // it is only a place
	var info unix.Stat_t
	if err := unix.Fstat(root, &info); err != nil {
		return nil, &os.PathError{Op: "stat", Path: base, Err: err}
	}
	at, err := openBelow(root, within, 0)
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

// madeOrNot makes a MakeError when there was something to make.
func madeOrNot(missing []string, err error) error {
	if len(missing) > 0 {
		return &MakeError{Err: err}
	}
	return err
}

// lookUp follows a path below a folder as far as there is something, and says where that is, with no link in it, and what is missing.
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

// openBelow opens a path below a folder that is open. It fails when a link is in it, at its end too.
func openBelow(at int, path string, flags uint64) (int, error) {
	return unix.Openat2(at, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// makeBelow makes a folder in one that is open, and opens it. One that somebody else has made meanwhile, for another container of the
// pod for example, is as good; a link is not.
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

// setMode gives a folder that was just made the bits of its mode that mkdir(2) could not, if any: those of the volume differ from what
// the kernel hands on only where the folder above has others than the volume. Whoever is killed before leaves a folder without them.
func setMode(folder int, mode uint32) error {
	var info unix.Stat_t
	if err := unix.Fstat(folder, &info); err != nil {
		return err
	}
	if info.Mode&modeBits == mode {
		return nil
	}
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", folder), mode) // which is only a place
}

// mkdirat makes a folder with exactly this mode, at once: to change it afterwards would leave a wrong one when the process is killed in
// between, and might change another folder's, which a container has put there. The umask, which is the process's, is left out by a
// thread that has one of its own.
func mkdirat(at int, name string, mode uint32) error {
	made := make(chan error, 1)
	go func() { // ends with the call
		runtime.LockOSThread() // and is never unlocked: the thread ends with this
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			made <- fmt.Errorf("unshare: %w", err)
			return
		}
		unix.Umask(0)
		made <- unix.Mkdirat(at, name, mode)
	}()
	return <-made
}
