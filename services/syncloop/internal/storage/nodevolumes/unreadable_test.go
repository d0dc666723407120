package nodevolumes

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestARecordThatCannotBeReadIsNotReplaced has each read of a record fail with an I/O error.
func TestARecordThatCannotBeReadIsNotReplaced(t *testing.T) {
	f := folder{dir: t.TempDir(), logger: slog.New(slog.DiscardHandler)}
	file := filepath.Join(f.dir, "pvc-u1.json")
	if err := os.Symlink("/proc/self/mem", file); err != nil { // of which no read succeeds
		t.Fatal(err)
	}
	if all, err := f.load(); err != nil || len(all) > 0 {
		t.Errorf("load() = %v, %v, want nothing", all, err)
	}
	if err := f.save("pvc-u1", &record{}); !errors.Is(err, unix.EIO) {
		t.Errorf("save() = %v, want %v", err, unix.EIO)
	}
	if info, err := os.Lstat(file); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the record was replaced: %v, %v", info, err)
	}
}
