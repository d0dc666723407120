package volumes_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

func TestAVolumeInMemoryIsNeverSwappedOutWhereTheKernelCanSeeToThat(t *testing.T) {
	needsMounts(t)
	probe := t.TempDir()
	can := unix.Mount("tmpfs", probe, "tmpfs", 0, "noswap") == nil
	if can {
		_ = unix.Unmount(probe, 0)
	}
	dir := filepath.Join(t.TempDir(), "data")
	pod := emptyDir(v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory})
	plugin := &volumes.EmptyDir{Mounter: volumes.Unswapped{Mounter: volumes.Machine{}}}
	if err := plugin.SetUp(t.Context(), volumes.Request{Pod: pod, Volume: &pod.Spec.Volumes[0], Dir: dir}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	all, err := volumes.Machine{}.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range all {
		if point.Path == dir && slices.Contains(point.Opts, "noswap") != can {
			t.Errorf("mounted with %v; the kernel can: %v", point.Opts, can)
		}
	}
	if err := plugin.TearDown(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("afterwards: %v, want fs.ErrNotExist", err)
	}
}
