package podcgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/test/require"
)

// TestACgroupThatCannotBeListedIsNotTakenForAnEmptyOne has a cgroup that is a link to itself, and one whose processes
// cannot be read.
func TestACgroupThatCannotBeListedIsNotTakenForAnEmptyOne(t *testing.T) {
	mount := t.TempDir()
	loop, unread := filepath.Join(mount, "loop"), filepath.Join(mount, "unread")
	require.NoError(t, os.Symlink("loop", loop))
	require.NoError(t, os.MkdirAll(filepath.Join(unread, "cgroup.procs"), 0o700))
	machine := NewMachine("cgroupfs", clock.RealClock{})
	machine.at = map[string]string{unified: mount}

	if below, err := machine.Below("/loop"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Below() = %q, %v, want %v", below, err, unix.ELOOP)
	}
	if usage, err := machine.Usage("/loop"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Usage() = %+v, %v, want an error that does not say that it is missing", usage, err)
	}
	if details, err := machine.Details("/loop"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Details() = %+v, %v, want %v", details, err, unix.ELOOP)
	}
	if err := machine.Remove(t.Context(), "/loop"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Remove() = %v, want %v", err, unix.ELOOP)
	}
	if all, err := processes([]string{unread}); err == nil {
		t.Errorf("processes() = %v, want an error", all)
	}
	if all, err := processes([]string{filepath.Join(mount, "none")}); err != nil || len(all) > 0 {
		t.Errorf("of a cgroup that is not there processes() = %v, %v, want none", all, err)
	}
	if err := machine.Remove(t.Context(), "/unread"); err == nil || !strings.Contains(err.Error(), "list its processes") {
		t.Errorf("Remove() = %v, want that the processes cannot be listed", err)
	}
	if _, err := os.Stat(unread); err != nil {
		t.Errorf("the cgroup whose processes are not known is gone: %v", err)
	}
}
