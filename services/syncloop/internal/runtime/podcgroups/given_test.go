package podcgroups

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

func TestWhatACgroupWasGiven(t *testing.T) {
	version1 := func(files ...string) (resources.Resources, error) {
		dir := tree(t, files...)
		return givenByV1(map[string]string{"cpu": dir, "memory": dir, unified: dir})
	}
	version2 := func(files ...string) (resources.Resources, error) { return givenByV2(tree(t, files...)) }
	for name, test := range map[string]struct {
		read  func(...string) (resources.Resources, error)
		files []string
		want  resources.Resources
	}{
		"version 1": {
			version1, []string{"cpu.shares: 204", "cpu.cfs_quota_us: 20000", "cpu.cfs_period_us: 100000", "memory.limit_in_bytes: 4096"},
			resources.Resources{CPUShares: 204, CPUQuota: 20000, CPUPeriod: 100000, Memory: 4096},
		},
		"version 1 without limits": {
			version1, []string{"cpu.shares: 2", "cpu.cfs_quota_us: -1", "cpu.cfs_period_us: 100000", "memory.limit_in_bytes: 9223372036854771712"},
			resources.Resources{CPUShares: 2, CPUQuota: resources.NoLimit, CPUPeriod: 100000, Memory: resources.NoLimit},
		},
		"version 1 without quotas in the kernel": {
			version1, []string{"cpu.shares: 2", "memory.limit_in_bytes: 4096"}, resources.Resources{CPUShares: 2, Memory: 4096},
		},
		"version 2": {
			version2, []string{"cpu.weight: 100", "cpu.max: 20000 100000", "memory.max: 4096"},
			resources.Resources{CPUShares: 2597, CPUQuota: 20000, CPUPeriod: 100000, Memory: 4096},
		},
		"version 2 without limits": {
			version2, []string{"cpu.weight: 1", "cpu.max: max 100000", "memory.max: max"},
			resources.Resources{CPUShares: 2, CPUQuota: resources.NoLimit, CPUPeriod: 100000, Memory: resources.NoLimit},
		},
		"version 2 without controllers": {version2, []string{"cgroup.procs: "}, resources.Resources{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.read(test.files...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	gone := filepath.Join(t.TempDir(), "gone")
	if _, err := givenByV1(map[string]string{"cpu": gone, "memory": gone}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("for a missing cgroup of version 1 the error is %v", err)
	}
	if _, err := givenByV2(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("for a missing cgroup of version 2 the error is %v", err)
	}
	if _, err := version2("cpu.max: much 100000"); err == nil {
		t.Error("a quota that is not a number is accepted")
	}
}
