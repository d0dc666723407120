package volumes_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// TestWhatIsMountedOfAVolumeGoesBeforeTheVolume checks that sub-path mounts are removed before their volume, also if
// only the disk has a record of them.
func TestWhatIsMountedOfAVolumeGoesBeforeTheVolume(t *testing.T) {
	needsMounts(t)
	for name, forgotten := range map[string]bool{"the process that has mounted it": false, "the next one, for a pod that nobody has": true} {
		t.Run(name, func(t *testing.T) {
			root, host := t.TempDir(), t.TempDir()
			start := func() (manager *volumes.Manager, stop func()) {
				manager, err := volumes.New(volumes.Config{
					PodsDir: root, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
					Plugins: []volumes.Plugin{&volumes.EmptyDir{Mounter: volumes.Machine{}}, volumes.HostPath{}},
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				var running sync.WaitGroup
				running.Go(func() { _ = manager.Run(ctx) })
				return manager, sync.OnceFunc(func() {
					cancel()
					running.Wait()
				})
			}
			manager, stop := start()
			defer func() { stop() }()
			pod := emptyDir(v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory})
			with(pod, v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}})
			manager.Want(t.Context(), pod)
			if err := manager.Wait(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			for i := range pod.Spec.Volumes {
				v := &pod.Spec.Volumes[i]
				at, err := manager.SubPath(t.Context(), pod, v, &pod.Spec.Containers[0], i, "a/b")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
				if err := os.WriteFile(filepath.Join(at, "file"), nil, 0o600); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(filepath.Join(manager.Path(pod, v), "a/b/file")); err != nil {
					t.Error(err)
				}
			}
			if at := mountsAt(t, root); len(at) != 3 {
				t.Errorf("mounted at %v, want 3 entries", at)
			}
			if forgotten {
				stop()
				manager, stop = start()
			}
			if err := manager.Release(t.Context(), pod.UID); err != nil {
				t.Fatal(err)
			}
			if at := mountsAt(t, root); len(at) > 0 {
				t.Errorf("still mounted at %v", at)
			}
			if _, err := os.Stat(filepath.Join(root, string(pod.UID), "volume-subpaths")); !os.IsNotExist(err) {
				t.Errorf("the folder of what was mounted: %v, want fs.ErrNotExist", err)
			}
			if _, err := os.Stat(filepath.Join(host, "a/b/file")); err != nil {
				t.Errorf("what is the host's: %v", err)
			}
		})
	}
}
