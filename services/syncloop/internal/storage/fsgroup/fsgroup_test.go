package fsgroup_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
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
	if err := fsgroup.Apply(t.Context(), dir, group, false, nil, quiet(t)); err != nil {
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
	if err := fsgroup.Apply(t.Context(), dir, group, true, nil, quiet(t)); err != nil {
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
	if err := fsgroup.Apply(t.Context(), dir, group, false, policy, quiet(t)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	check(t, file, group, 0o660)
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fsgroup.Apply(t.Context(), dir, group, false, policy, quiet(t)); err != nil {
		t.Fatal(err)
	}
	check(t, file, group, 0o600)
	if err := fsgroup.Apply(t.Context(), dir, group, false, ptr.To(v1.FSGroupChangeAlways), quiet(t)); err != nil {
		t.Fatal(err)
	}
	check(t, file, group, 0o660)
}

// quiet returns a monitor of a change that is not slow.
func quiet(t *testing.T) *fsgroup.Monitor {
	t.Helper()
	return &fsgroup.Monitor{Clock: clock.RealClock{}, Warn: func(message string) { t.Errorf("warned: %s", message) }}
}

// slowClock is a clock of a machine on which each file takes 25 s.
type slowClock struct {
	clock.PassiveClock
	now time.Time
}

func (c *slowClock) Now() time.Time {
	c.now = c.now.Add(25 * time.Second)
	return c.now
}

// TestAChangeThatTakesLongIsReported checks that it is reported after 30 s, and then each minute.
func TestAChangeThatTakesLongIsReported(t *testing.T) {
	require.Root(t, "changing owners")
	dir := t.TempDir()
	for n := range 6 {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(n)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var warned []string
	volume := fsgroup.VolumeOf("/root/pods/u1/volumes/kubernetes.io~csi/pv-1/mount", "u1")
	err := fsgroup.Apply(t.Context(), dir, 4242, false, nil, &fsgroup.Monitor{
		Clock: &slowClock{}, Volume: volume, Warn: func(message string) { warned = append(warned, message) },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Setting volume ownership for u1/volumes/kubernetes.io~csi/pv-1/mount is taking longer than expected, consider using " +
			"OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/" +
			"#configure-volume-permission-and-ownership-change-policy-for-pods",
		"Setting volume ownership for u1/volumes/kubernetes.io~csi/pv-1/mount, processed 5 files.",
	}
	if !slices.Equal(warned, want) {
		t.Errorf("warned of %q, want %q", warned, want)
	}
}
