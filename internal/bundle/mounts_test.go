package bundle

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/sharedmount"
	"github.com/quartet-node/quartet/test/require"
)

// TestDisksOfAnAdministratorStayMounted has disks at the state directory and below it, volumes of pods and layers of
// containers, on a machine whose mounts may be private.
func TestDisksOfAnAdministratorStayMounted(t *testing.T) {
	require.Root(t, "mounting")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	below := func() (at []string) {
		t.Helper()
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, mount := range mounts {
			at = append(at, mount.Mountpoint)
		}
		slices.Sort(at)
		return at
	}
	t.Cleanup(func() {
		for range 20 {
			for _, at := range slices.Backward(below()) {
				_ = unix.Unmount(at, unix.MNT_DETACH)
			}
		}
	})
	mount := func(at string) string {
		t.Helper()
		at = filepath.Join(dir, at)
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		return at
	}
	disks := []string{mount("."), mount("claims"), mount("runtime/root"), mount("root")}
	slices.Sort(disks)
	if _, err := sharedmount.Make(dir); err != nil {
		t.Fatal(err)
	}
	mount("root/pods/u1/volumes/kubernetes.io~secret/token")
	mount("runtime/state/io.containerd.runtime.v2.task/k8s.io/c/rootfs")
	mount("claims/default/data")
	b := New(Config{Layout: layoutAt(t, dir)})
	for range 2 {
		if err := b.unmount(); err != nil {
			t.Error(err)
		}
		if got := below(); !slices.Equal(got, disks) {
			t.Errorf("mounted are %v, want %v", got, disks)
		}
	}
	if err := unmountBelow(b.cfg.Layout, b.cfg.Layout.Runtime()); err != nil || !slices.Equal(below(), disks) {
		t.Errorf("mounted are %v, %v", below(), err)
	}
}
