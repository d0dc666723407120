package fsgroup_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/fsgroup"
	"github.com/quartet-node/quartet/test/require"
)

const group = 4711

// tree makes a directory with a file, a directory with a file, and a link out of it.
func tree(t *testing.T) (dir, outside string) {
	t.Helper()
	top := t.TempDir()
	dir, outside = filepath.Join(top, "volume"), filepath.Join(top, "outside")
	for _, path := range []string{filepath.Join(dir, "below"), outside} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"volume/file", "volume/below/file", "outside/file"} {
		if err := os.WriteFile(filepath.Join(top, path), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	return dir, outside
}

func check(t *testing.T, path string, gid uint32, mode fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Sys().(*syscall.Stat_t).Gid; got != gid || info.Mode() != mode { //nolint:forcetypeassert // it is Linux
		t.Errorf("%s is of the group %d with %s, want %d with %s", path, got, info.Mode(), gid, mode)
	}
}

func TestEverythingOfAVolumeIsGivenToTheGroup(t *testing.T) {
	require.Root(t, "changing groups")
	dir, outside := tree(t)
	if err := fsgroup.Apply(t.Context(), dir, group, false, nil); err != nil {
		t.Fatal(err)
	}
	check(t, dir, group, fs.ModeDir|fs.ModeSetgid|0o770)
	check(t, filepath.Join(dir, "file"), group, 0o660)
	check(t, filepath.Join(dir, "below"), group, fs.ModeDir|fs.ModeSetgid|0o770)
	check(t, filepath.Join(dir, "below/file"), group, 0o660)
	check(t, filepath.Join(dir, "link"), group, fs.ModeSymlink|0o777)
	check(t, outside, 0, fs.ModeDir|0o700)
	check(t, filepath.Join(outside, "file"), 0, 0o600)
}

func TestAReadOnlyVolumeIsReadableForTheGroup(t *testing.T) {
	require.Root(t, "changing groups")
	dir, _ := tree(t)
	if err := fsgroup.Apply(t.Context(), dir, group, true, nil); err != nil {
		t.Fatal(err)
	}
	check(t, dir, group, fs.ModeDir|fs.ModeSetgid|0o750)
	check(t, filepath.Join(dir, "file"), group, 0o640)
}

// TestARootThatMatchesEndsTheChange changes a file in between.
func TestARootThatMatchesEndsTheChange(t *testing.T) {
	require.Root(t, "changing groups")
	dir, _ := tree(t)
	policy := ptr.To(v1.FSGroupChangeOnRootMismatch)
	if err := fsgroup.Apply(t.Context(), dir, group, false, policy); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	check(t, file, group, 0o660)
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fsgroup.Apply(t.Context(), dir, group, false, policy); err != nil {
		t.Fatal(err)
	}
	check(t, file, group, 0o600)
	if err := fsgroup.Apply(t.Context(), dir, group, false, ptr.To(v1.FSGroupChangeAlways)); err != nil {
		t.Fatal(err)
	}
	check(t, file, group, 0o660)
}
