package bundle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// cgroupMount is where the cgroups are: of one hierarchy, or of several each in a directory of its own.
const cgroupMount = "/sys/fs/cgroup"

// RemoveCgroups removes a cgroup and all that are in it, as those of a node's pods are in layout.Layout.CgroupRoot, and those
// above it that nothing else is in. Processes in them must have ended: one that is just ending is waited for.
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
				break // it is not there, or another's
			}
		}
	}
	return errors.Join(errs...)
}

// cgroupHierarchies are the directories of those that can be written; none where there are no cgroups.
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
		// Two controllers of one hierarchy have a symbolic link each.
		if dir := filepath.Join(cgroupMount, entry.Name()); entry.IsDir() && isCgroups(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

func isCgroups(dir string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil && (stat.Type == unix.CGROUP_SUPER_MAGIC || stat.Type == unix.CGROUP2_SUPER_MAGIC)
}
