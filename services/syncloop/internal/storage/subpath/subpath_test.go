package subpath_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/subpath"
	"github.com/quartet-node/quartet/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a volume, a directory of a pod, and a directory that the container must not reach.
type rig struct {
	t                       testing.TB
	root                    string
	volume, podDir, outside string
	mounts                  *subpath.Mounts
}

func newRig(t testing.TB) *rig {
	t.Helper()
	require.Root(t, "mounting")
	root := t.TempDir()
	r := &rig{
		t: t, root: root, volume: filepath.Join(root, "volume"), podDir: filepath.Join(root, "pods", "u1"), outside: filepath.Join(root, "outside"),
		mounts: &subpath.Mounts{Mounter: subpath.Machine{}},
	}
	for _, dir := range []string{r.volume, r.podDir, r.outside} {
		r.must(os.MkdirAll(dir, 0o750))
	}
	probe := filepath.Join(root, "probe")
	r.must(os.Mkdir(probe, 0o750))
	require.NoError(t, unix.Mount(probe, probe, "", unix.MS_BIND, ""))
	r.must(unix.Unmount(probe, 0))
	t.Cleanup(func() {
		at := r.mounted()
		slices.Reverse(at)
		for _, path := range at {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	})
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// write writes a file below the root, with its parent directories.
func (r *rig) write(path, content string) {
	r.t.Helper()
	path = filepath.Join(r.root, path)
	r.must(os.MkdirAll(filepath.Dir(path), 0o750))
	r.must(os.WriteFile(path, []byte(content), 0o600))
}

func (r *rig) request(path string) subpath.Request {
	return subpath.Request{Volume: r.volume, Path: path, PodDir: r.podDir, Name: "data", Container: "app", Index: 1}
}

func (r *rig) prepare(path string) string {
	r.t.Helper()
	target, err := r.mounts.Prepare(r.t.Context(), r.request(path))
	if err != nil {
		r.t.Fatalf("%s: %v", path, err)
	}
	if want := filepath.Join(r.podDir, "volume-subpaths/data/app/1"); target != want {
		r.t.Fatalf("mounted at %s, want %s", target, want)
	}
	return target
}

// mounted returns the mount points below the root, in the order of the mount table.
func (r *rig) mounted() []string {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(r.root))
	r.must(err)
	var at []string
	for _, info := range infos {
		at = append(at, info.Mountpoint)
	}
	return at
}

// clean removes everything, and fails the test if anything is left.
func (r *rig) clean() {
	r.t.Helper()
	for range 2 {
		r.must(r.mounts.Clean(r.podDir, "data"))
	}
	if at := r.mounted(); len(at) > 0 {
		r.t.Errorf("still mounted: %v", at)
	}
	if names := names(r.t, r.podDir); len(names) > 0 {
		r.t.Errorf("left in the pod's folder: %v", names)
	}
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestWhatIsBelowAPathIsMountedUntilItIsCleaned(t *testing.T) {
	for path, link := range map[string]string{
		"dir": "", "file": "", "to-dir": "dir", "to-file": "dir/../file", "deep/link": "../dir", "absolute": "/volume/dir", "./dir/": "", ".": "",
	} {
		t.Run(path, func(t *testing.T) {
			r := newRig(t)
			r.write("volume/dir/content", "a folder's")
			r.write("volume/file", "a file's")
			r.write("volume/content", "the root's")
			r.must(os.Mkdir(filepath.Join(r.volume, "deep"), 0o750))
			if strings.HasPrefix(link, "/") {
				link = filepath.Join(r.root, link)
			}
			if link != "" {
				r.must(os.Symlink(link, filepath.Join(r.volume, path)))
			}
			target := r.prepare(path)
			file, want := filepath.Join(target, "content"), "a folder's"
			if strings.Contains(path, "file") {
				file, want = target, "a file's"
			} else if path == "." {
				want = "the root's"
			}
			if got, err := os.ReadFile(file); string(got) != want {
				t.Errorf("mounted is %q, %v, want %q", got, err, want)
			}
			before := r.mounted()
			if r.prepare(path); len(before) != 1 || !slices.Equal(r.mounted(), before) {
				t.Errorf("mounted at first %v, then %v", before, r.mounted())
			}
			r.clean()
			if got := names(t, r.volume); !slices.Contains(got, "dir") || !slices.Contains(got, "file") {
				t.Errorf("the volume has only %v", got)
			}
		})
	}
}

func TestAMissingFolderIsMadeWithTheModeOfTheVolume(t *testing.T) {
	r := newRig(t)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	r.must(os.Chown(r.volume, -1, 4711))
	r.must(os.Chmod(r.volume, 0o777|fs.ModeSetgid|fs.ModeSticky))
	r.must(os.Mkdir(filepath.Join(r.volume, "there"), 0o700))
	r.prepare("there/a/b")
	for _, path := range []string{"there/a", "there/a/b"} {
		info, err := os.Stat(filepath.Join(r.volume, path))
		r.must(err)
		of := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // it is Linux
		if info.Mode() != fs.ModeDir|fs.ModeSetgid|fs.ModeSticky|0o777 || of.Uid != 0 || of.Gid != 4711 {
			t.Errorf("%s: %v of %d:%d, want %v, 0 and 4711",
				path, info.Mode(), of.Uid, of.Gid, fs.ModeDir|fs.ModeSetgid|fs.ModeSticky|0o777)
		}
	}
	if info, err := os.Stat(filepath.Join(r.volume, "there")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("what was there: %v, %v, want Mode.Perm 0o700", info, err)
	}
	r.clean()
	if unix.Umask(0o077) != 0o077 {
		t.Error("the umask of the process is another")
	}
}

// TestTheModeOfTheVolumeCounts checks that a new directory has the mode of the volume's root and not of its parent, as
// with a kubelet, including the sticky bit and the set-ID bits.
func TestTheModeOfTheVolumeCounts(t *testing.T) {
	for _, mode := range []fs.FileMode{
		0o755, 0o777, 0o777 | fs.ModeSticky, 0o770 | fs.ModeSetgid, 0o777 | fs.ModeSticky | fs.ModeSetgid,
		0o700 | fs.ModeSetuid,
	} {
		for _, above := range []fs.FileMode{0o700, 0o777 | fs.ModeSetgid, 0o777 | fs.ModeSticky} {
			t.Run(fmt.Sprintf("%v in %v", mode, above), func(t *testing.T) {
				r := newRig(t)
				r.must(os.Chmod(r.volume, mode))
				r.must(os.Mkdir(filepath.Join(r.volume, "there"), 0o700))
				r.must(os.Chmod(filepath.Join(r.volume, "there"), above))
				r.prepare("there/a/b")
				for path, want := range map[string]fs.FileMode{"there": above, "there/a": mode, "there/a/b": mode} {
					info, err := os.Stat(filepath.Join(r.volume, path))
					r.must(err)
					if info.Mode() != fs.ModeDir|want {
						t.Errorf("%s: %v, want %v", path, info.Mode(), fs.ModeDir|want)
					}
				}
			})
		}
	}
}

func TestAPathThatLeadsOutIsNeitherMountedNorMade(t *testing.T) {
	for what, made := range map[string]bool{
		"absolute": false, "relative": false, "absolute/there": false, "through/outside": false, "absolute/new": true, "relative/new/more": true, "dangling": true, "dangling/new": true,
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.write("outside/there/secret", "")
			for name, to := range map[string]string{
				"absolute": r.outside, "relative": "../outside", "through": "..", "dangling": filepath.Join(r.outside, "nothing"),
			} {
				r.must(os.Symlink(to, filepath.Join(r.volume, name)))
			}
			target, err := r.mounts.Prepare(t.Context(), r.request(what))
			if make := (*subpath.MakeError)(nil); err == nil || errors.As(err, &make) != made {
				t.Errorf("mounted at %q, error %v", target, err)
			}
			if got := names(t, r.outside); !slices.Equal(got, []string{"there"}) {
				t.Errorf("outside are now %v, want %v", got, []string{"there"})
			}
			if at := r.mounted(); len(at) > 0 {
				t.Errorf("mounted: %v, want none", at)
			}
			r.clean()
		})
	}
}

func TestOnlyAPathWithinTheVolumeMayBeASubPath(t *testing.T) {
	for path, want := range map[string]string{
		"a": "", "a/..b/c": "", "": "",
		"/a":     "error SubPath `/a` must not be an absolute path",
		"a/../b": "unable to provision SubPath `a/../b`: must not contain '..'",
	} {
		got := ""
		if err := subpath.Check(path); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", path, got, want)
		}
	}
	mounts := &subpath.Mounts{Mounter: subpath.Machine{}}
	if _, err := mounts.Prepare(t.Context(), subpath.Request{Volume: t.TempDir(), Path: "../x", PodDir: t.TempDir(), Name: "data", Container: "app"}); err == nil {
		t.Error("a path with .. is mounted")
	}
}

func TestAContainerThatStartsAgainGetsWhatThePathLeadsToNow(t *testing.T) {
	r := newRig(t)
	r.write("volume/v1/content", "1")
	r.write("volume/v2", "2")
	link := filepath.Join(r.volume, "current")
	r.must(os.Symlink("v1", link))
	target := r.prepare("current")
	r.must(os.Remove(link))
	r.must(os.Symlink("v2", link)) // a file instead of a directory
	if got, err := os.ReadFile(filepath.Join(target, "content")); string(got) != "1" {
		t.Errorf("before it starts again: %q, %v", got, err)
	}
	r.prepare("current")
	if got, err := os.ReadFile(target); string(got) != "2" {
		t.Errorf("after: %q, %v, want %q", got, err, "2")
	}
	r.must(os.Remove(filepath.Join(r.volume, "v2"))) // the mounted file is gone
	r.must(os.Remove(link))
	r.prepare("current")
	if got := names(t, target); len(got) != 0 || len(r.mounted()) != 1 {
		t.Errorf("a folder that was made anew has %v; mounted %v", got, r.mounted())
	}
	r.clean()
}

// TestWhatIsMountedInASharedVolumeStaysThere checks that mounts propagate from the host to a mounted sub-path, and that
// an unmount of the sub-path does not propagate back.
func TestWhatIsMountedInASharedVolumeStaysThere(t *testing.T) {
	r := newRig(t)
	r.must(unix.Mount("tmpfs", r.volume, "tmpfs", 0, ""))
	below := filepath.Join(r.volume, "dir", "below")
	r.must(os.MkdirAll(below, 0o750))
	target := r.prepare("dir")
	r.must(unix.Mount("", r.volume, "", unix.MS_SHARED, "")) // after the mount, so the sub-path is not in the peer group
	request := r.request("dir")
	request.Propagates = true
	if _, err := r.mounts.Prepare(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	r.must(unix.Mount("tmpfs", below, "tmpfs", 0, ""))
	r.write("volume/dir/below/content", "")
	if got := names(t, filepath.Join(target, "below")); !slices.Equal(got, []string{"content"}) {
		t.Fatalf("what the host mounts is not seen: %v", got)
	}
	r.must(r.mounts.Clean(r.podDir, "data"))
	if got := r.mounted(); !slices.Equal(got, []string{r.volume, below}) {
		t.Errorf("mounted are %v, want %v", got, []string{r.volume, below})
	}
	if got := names(t, below); !slices.Equal(got, []string{"content"}) {
		t.Errorf("the host has %v, want %v", got, []string{"content"})
	}
}

func TestCleaningFollowsNoLinkAndTouchesNoOtherVolume(t *testing.T) {
	r := newRig(t)
	r.write("outside/1", "kept")
	r.must(os.Mkdir(filepath.Join(r.volume, "dir"), 0o750))
	r.prepare("dir")
	other := r.request("dir")
	other.Name = "data-2"
	kept, err := r.mounts.Prepare(t.Context(), other)
	r.must(err)
	r.must(os.Symlink(r.outside, filepath.Join(r.podDir, "volume-subpaths/data/link")))
	r.must(unix.Mount(r.outside, r.outside, "", unix.MS_BIND, ""))
	again := r.prepare("dir")
	r.must(unix.Mount(r.outside, again, "", unix.MS_BIND, "")) // stacked mounts
	r.must(r.mounts.Clean(r.podDir, "data"))
	if got := r.mounted(); !slices.Equal(got, []string{kept, r.outside}) {
		t.Errorf("mounted are %v, want %v", got, []string{kept, r.outside})
	}
	if got := names(t, r.outside); !slices.Equal(got, []string{"1"}) {
		t.Errorf("outside are now %v, want %v", got, []string{"1"})
	}
	r.must(r.mounts.Clean(r.podDir, "data-2"))
	r.must(unix.Unmount(r.outside, 0))
	r.clean()
}
