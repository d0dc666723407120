package logrotate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/test/eventually"
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

// TestADiskThatHangsDelaysNoOtherMetric: a scrape has the metrics without the sizes, and asks once.
func TestADiskThatHangsDelaysNoOtherMetric(t *testing.T) {
	hang, calls := make(chan struct{}), make(chan struct{}, 10)
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "another"}))
	Expose(registry, func() []Used {
		calls <- struct{}{}
		<-hang
		return []Used{{Container: "web", Bytes: 1}}
	})
	names := func() (names []string) {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			names = append(names, family.GetName())
		}
		return names
	}
	for range 2 {
		if got := names(); len(got) != 1 || got[0] != "another" {
			t.Errorf("while the disk hangs a scrape has %q, want another", got)
		}
	}
	if len(calls) != 1 {
		t.Errorf("the disk was asked %d times, want once", len(calls))
	}
	close(hang)
	eventually.That(t, "the sizes are there", func() bool { return len(names()) == 2 })
}
