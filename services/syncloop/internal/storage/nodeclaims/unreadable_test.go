package nodeclaims

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestClaimsAreUnknownWhileARecordCannotBeRead, because the directory of one must not become that of another.
func TestClaimsAreUnknownWhileARecordCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "default"), 0o700))
	file := filepath.Join(dir, "default", ".u1.json")
	must(t, os.Symlink("/proc/self/mem", file)) // of which no read succeeds
	f := folder{dir: dir, logger: slog.New(slog.DiscardHandler)}
	if all, err := f.load(); !errors.Is(err, unix.EIO) || len(all) > 0 {
		t.Errorf("load() = %v, %v, want %v", all, err, unix.EIO)
	}
	if info, err := os.Lstat(file); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the record was replaced: %v, %v", info, err)
	}
}
