package bundle_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/test/harness"
)

func TestCgroupsAreRemovedUpToWhatIsAnothers(t *testing.T) {
	if os.Geteuid() != 0 {
		harness.Require(t, errors.New("cgroups are root's to make: run the test as root"))
	}
	// With cgroup v1 the hierarchy of one controller represents all.
	hierarchy := "/sys/fs/cgroup"
	if _, err := os.Stat(hierarchy + "/cgroup.controllers"); err != nil {
		hierarchy += "/memory"
	}
	top := fmt.Sprintf("/quartet-test-%d", os.Getpid())
	err := os.MkdirAll(filepath.Join(hierarchy, top, "a/node/kubepods/burstable/pod1"), 0o755)
	if err == nil {
		err = os.Mkdir(filepath.Join(hierarchy, top, "other"), 0o755)
	}
	harness.Require(t, err)
	t.Cleanup(func() {
		for _, left := range []string{top + "/other", top} {
			if err := os.Remove(filepath.Join(hierarchy, left)); err != nil {
				t.Error(err)
			}
		}
	})
	for range 2 { // the second call is a no-op
		if err := bundle.RemoveCgroups(top + "/a/node"); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(hierarchy, top))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.IsDir() && entry.Name() != "other" {
			t.Errorf("%s is left", entry.Name())
		}
	}
	if _, err := os.Stat(filepath.Join(hierarchy, top, "other")); err != nil {
		t.Errorf("another's: %v", err)
	}
}
