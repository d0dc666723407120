package subpath_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/subpath"
	"github.com/quartet-node/quartet/test/killpoint"
)

// TestAKillBeforeAnySystemCallLeavesNothingBehind kills a real process before each system call of a mount's life. The
// next process must be able to mount and to clean up.
func TestAKillBeforeAnySystemCallLeavesNothingBehind(t *testing.T) {
	if root := os.Getenv("SUBPATH_TEST_ROOT"); root != "" {
		mounts := &subpath.Mounts{Mounter: subpath.Machine{}}
		podDir := filepath.Join(root, "pods/u1")
		r := subpath.Request{Volume: filepath.Join(root, "volume"), Path: "a/b", PodDir: podDir, Name: "data", Container: "app", Index: 1}
		if _, err := mounts.Prepare(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if err := mounts.Clean(podDir, "data"); err != nil {
			t.Fatal(err)
		}
		return
	}
	const at = "pods/u1/volume-subpaths"
	want := []string{
		"mkdir volume/a", "mkdir volume/a/b",
		"mkdir " + at, "mkdir " + at + "/data", "mkdir " + at + "/data/app", "mkdir " + at + "/data/app/1", "mount " + at + "/data/app/1",
		"mount " + at + "/data/app/1", "unmount " + at + "/data/app/1", // made private first
		"remove " + at + "/data", "remove " + at + "/data/app", "remove " + at + "/data/app/1", "remove " + at + "/data/app/1",
		"remove " + at + "/data/app", "remove " + at + "/data", // first as a file, then as a directory
		"remove " + at, "remove " + at,
	}
	for n := range len(want) + 1 {
		for _, comesBack := range []bool{true, false} {
			killedAt(t, want, n, comesBack)
		}
	}
}

// killedAt kills a process before its nth call, or not at all if n is 0. Then it cleans up, after another mount if
// comesBack is true.
func killedAt(t *testing.T, want []string, n int, comesBack bool) {
	t.Helper()
	r := newRig(t)
	r.must(os.Chmod(r.volume, 0o777))
	cmd := exec.Command(os.Args[0], "-test.run=^TestAKillBeforeAnySystemCallLeavesNothingBehind$")
	cmd.Env = append(os.Environ(), "SUBPATH_TEST_ROOT="+r.root)
	tr := &killpoint.Tracer{Root: r.root, Kill: n}
	status := tr.Run(t, cmd)
	if n > 0 {
		want = want[:n]
	}
	if !slices.Equal(tr.Calls, want) || status.Signaled() != (n > 0) {
		t.Fatalf("the process ended with %#x after\n%s\nwant\n%s", status, strings.Join(tr.Calls, "\n"), strings.Join(want, "\n"))
	}
	if comesBack {
		target := r.prepare("a/b")
		for _, path := range []string{target, filepath.Join(r.volume, "a")} {
			if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeDir|0o777 {
				t.Errorf("killed before call %d: %s: %v, %v", n, path, info, err)
			}
		}
		if at := r.mounted(); !slices.Equal(at, []string{target}) {
			t.Errorf("killed before call %d: mounted at %v", n, at)
		}
	}
	r.clean()
}
