package machineuuid

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/test/require"
)

func TestWhatRootHasSavedCounts(t *testing.T) {
	dir := t.TempDir()
	if got, err := Of(dir); err != nil || got != read() {
		t.Errorf("Of() = %q, %v, want what this process reads, %q", got, err, read())
	}
	require.NoError(t, Save(dir))
	if got, err := Of(dir); err != nil || got != read() {
		t.Errorf("Of() = %q, %v, want what was saved, %q", got, err, read())
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("1234-saved\n"), 0o600))
	if got, err := Of(dir); err != nil || got != "1234-saved" {
		t.Errorf("Of() = %q, %v, want what was saved", got, err)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, file)))
	require.NoError(t, os.Mkdir(filepath.Join(dir, file), 0o700))
	if got, err := Of(dir); err == nil || got != read() {
		t.Errorf("Of() = %q, %v, want what this process reads, and an error", got, err)
	}
}
