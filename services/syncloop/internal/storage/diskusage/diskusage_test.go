package diskusage_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/diskusage"
)

func TestUsageIsWhatTheFolderTakesOfItsDisk(t *testing.T) {
	dir := t.TempDir()
	inside, outside := filepath.Join(dir, "volume"), filepath.Join(dir, "outside")
	write := func(path string, size int) {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	measure := func() int64 {
		used, err := diskusage.Of(t.Context(), inside)
		if err != nil {
			t.Fatal(err)
		}
		return used.Bytes
	}
	write(filepath.Join(outside, "large"), 8<<20)
	write(filepath.Join(inside, "a", "b", "file"), 1<<20)
	if used, err := diskusage.Of(t.Context(), inside); err != nil || used.Inodes != 4 {
		t.Errorf("a file in two folders of a folder: %+v, %v", used, err)
	}
	before := measure()
	if before < 1<<20 || before > 1<<20+64<<10 {
		t.Errorf("%d bytes, want at least %d and at most %d", before, 1<<20, 1<<20+64<<10)
	}
	for name, add := range map[string]func() error{
		"another name": func() error { return os.Link(filepath.Join(inside, "a", "b", "file"), filepath.Join(inside, "again")) },
		"a link":       func() error { return os.Symlink(outside, filepath.Join(inside, "link")) },
		"a sparse file": func() error {
			write(filepath.Join(inside, "sparse"), 0)
			return os.Truncate(filepath.Join(inside, "sparse"), 1<<30)
		},
	} {
		if err := add(); err != nil {
			t.Fatal(err)
		}
		if now := measure(); now-before > 16<<10 {
			t.Errorf("%s: %d bytes more", name, now-before)
		}
	}
	mounted := filepath.Join(inside, "mounted")
	if err := os.Mkdir(mounted, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, ""); err == nil {
		t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
		write(filepath.Join(mounted, "large"), 4<<20)
		if now := measure(); now-before > 16<<10 {
			t.Errorf("another file system: %d bytes more", now-before)
		}
	}
	if _, err := diskusage.Of(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := diskusage.Of(ctx, inside); !errors.Is(err, context.Canceled) {
		t.Errorf("cut short: %v, want %v", err, context.Canceled)
	}
}
