package rmtree_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/rmtree"
	"github.com/quartet-node/quartet/test/require"
)

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAllThatIsInAFolderIsRemoved(t *testing.T) {
	root := t.TempDir()
	dir, outside := filepath.Join(root, "dir"), filepath.Join(root, "outside")
	write(t, filepath.Join(outside, "kept"))
	for i := range 2000 { // more entries than one read returns
		write(t, filepath.Join(dir, "many", fmt.Sprint(i)))
	}
	write(t, filepath.Join(dir, "a", "b", "c", "file"))
	for _, link := range []string{"link", filepath.Join("a", "link")} {
		if err := os.Symlink(outside, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := rmtree.All(dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("left: %v, want fs.ErrNotExist", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Errorf("what a link led to: %v", err)
	}
	if err := rmtree.All(filepath.Join(root, "no", "such", "folder")); err != nil {
		t.Errorf("what is not there: %v", err)
	}
	if err := rmtree.All(filepath.Join(outside, "kept")); err != nil {
		t.Errorf("a file: %v", err)
	}
}

func TestNothingBelowAMountPointIsRemoved(t *testing.T) {
	for name, mount := range map[string]func(from, at string) error{
		"a file system of its own":               func(_, at string) error { return unix.Mount("tmpfs", at, "tmpfs", 0, "") },
		"another folder of the same file system": func(from, at string) error { return unix.Mount(from, at, "", unix.MS_BIND, "") },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "dir")
			at := filepath.Join(dir, "a", "mounted")
			write(t, filepath.Join(dir, "a", "own"))
			write(t, filepath.Join(root, "other", "file"))
			if err := os.Mkdir(at, 0o750); err != nil {
				t.Fatal(err)
			}
			require.NoError(t, mount(filepath.Join(root, "other"), at))
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			write(t, filepath.Join(at, "deep", "precious"))
			err := rmtree.All(dir)
			var mounted *rmtree.MountedError
			if !errors.As(err, &mounted) || mounted.Path != at {
				t.Errorf("All() error = %v, want a %T and mounted.Path %v", err, mounted, at)
			}
			if _, err := os.Stat(filepath.Join(at, "deep", "precious")); err != nil {
				t.Errorf("below the mount point: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "a", "own")); !os.IsNotExist(err) {
				t.Errorf("beside it: %v, want fs.ErrNotExist", err)
			}
			if err := rmtree.All(at); !errors.As(err, &mounted) {
				t.Errorf("the mount point itself: %v, want a %T", err, mounted)
			}
			if err := unix.Unmount(at, 0); err != nil {
				t.Fatal(err)
			}
			if err := rmtree.All(dir); err != nil {
				t.Errorf("when it is gone: %v", err)
			}
		})
	}
}
