package logrotate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/test/require"
)

// TestTheSizeOfLogsThatCannotBeListedIsNotKnown has a folder that leads to itself.
func TestTheSizeOfLogsThatCannotBeListedIsNotKnown(t *testing.T) {
	dir := t.TempDir()
	logs, loop := filepath.Join(dir, "logs"), filepath.Join(dir, "loop")
	require.NoError(t, os.Mkdir(logs, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(logs, "0.log"), []byte("line"), 0o600))
	require.NoError(t, os.Symlink(loop, loop))
	if bytes, err := Usage(logs); bytes != 4 || err != nil {
		t.Errorf("Usage() = %d, %v, want 4", bytes, err)
	}
	if bytes, err := Usage(filepath.Join(dir, "none")); bytes != 0 || err != nil {
		t.Errorf("of a folder that is not there Usage() = %d, %v, want 0", bytes, err)
	}
	if bytes, err := Usage(loop); err == nil {
		t.Errorf("of a folder that cannot be listed Usage() = %d, want an error", bytes)
	}
}
