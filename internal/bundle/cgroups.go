package bundle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// cgroupMount is the mount point of the cgroups: of one hierarchy, or of several, each in its own directory.
const cgroupMount = "/sys/fs/cgroup"

// RemoveCgroups removes a cgroup and its descendants, such as those of a node's pods in layout.Layout.CgroupRoot, and
// then its empty ancestors. Their processes must have ended; it waits for one that is exiting.
func RemoveCgroups(name string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return fmt.Errorf("removing the cgroups of the pods: %w", err)
	}
	var errs []error
	for _, hierarchy := range hierarchies {
		if err := cgroups.RemovePath(filepath.Join(hierarchy, name)); err != nil {
			errs = append(errs, fmt.Errorf("removing the cgroups of the pods: %w", err))
			continue
		}
		for above := filepath.Dir(filepath.Clean(name)); above != "/"; above = filepath.Dir(above) {
			if os.Remove(filepath.Join(hierarchy, above)) != nil {
				break // it does not exist, or others use it
			}
		}
	}
	return errors.Join(errs...)
}

// cgroupHierarchies returns the directories of the writable hierarchies; none if the machine has no cgroups.
func cgroupHierarchies() ([]string, error) {
	if isCgroups(cgroupMount) {
		return []string{cgroupMount}, nil
	}
	entries, err := os.ReadDir(cgroupMount)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var dirs []string
	for _, entry := range entries {
		// Each of two controllers in one hierarchy has a symbolic link.
		if dir := filepath.Join(cgroupMount, entry.Name()); entry.IsDir() && isCgroups(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

func isCgroups(dir string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil &&
		(stat.Type == unix.CGROUP_SUPER_MAGIC || stat.Type == unix.CGROUP2_SUPER_MAGIC)
}
