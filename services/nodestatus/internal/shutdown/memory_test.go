package shutdown

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/require"
)

// TestAChangedStateOfAShutdownIsNotUsed flips a bit of the boot: it would begin the shutdown of another boot anew. The
// file of v0.1.0, which has no checksum, counts.
func TestAChangedStateOfAShutdownIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, fileName)
	want := memory{Boot: "boot-1", StartTime: time.Unix(1000, 0).UTC(), Group: 2, GroupSince: time.Second}
	require.NoError(t, save(dir, want))
	if got, err := load(dir); err != nil || got != want {
		t.Errorf("load() = %+v, %v, want %+v", got, err, want)
	}
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.Replace(content, []byte("boot-1"), []byte("boot-3"), 1), 0o600))
	var damaged *statedir.DamagedError
	if got, err := load(dir); !errors.As(err, &damaged) || got != (memory{}) {
		t.Errorf("of a changed file load() = %+v, %v, want nothing and a %T", got, err, damaged)
	}
	require.NoError(t, os.WriteFile(path, []byte(`{"boot":"boot-1","startTime":"1970-01-01T00:16:40Z"}`), 0o600))
	if got, err := load(dir); err != nil || got.Boot != "boot-1" {
		t.Errorf("of a file of v0.1.0 load() = %+v, %v", got, err)
	}
}
