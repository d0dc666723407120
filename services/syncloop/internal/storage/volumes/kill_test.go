package volumes_test

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/rmtree"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/killpoint"
)

// killScenarios returns the system calls of an emptyDir's life by its medium.
func killScenarios() map[v1.StorageMedium][]string {
	const at = "u1/volumes/kubernetes.io~empty-dir"
	made := []string{
		"mkdir u1", "mkdir u1/volumes", "mkdir " + at,
		"mkdir " + at + "/.new-data", "chown " + at + "/.new-data", "chmod " + at + "/.new-data", "rename " + at + "/.new-data " + at + "/data",
	}
	gone := []string{"remove " + at + "/data", "remove " + at + "/data", "remove " + at + "/.new-data"}
	return map[v1.StorageMedium][]string{
		v1.StorageMediumDefault: slices.Concat(made, gone),
		v1.StorageMediumMemory:  slices.Concat(made, []string{"mount " + at + "/data", "unmount " + at + "/data"}, gone),
	}
}

func killPod(medium v1.StorageMedium) *v1.Pod {
	pod := emptyDir(v1.EmptyDirVolumeSource{Medium: medium})
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4711)}
	return pod
}

// onMachine runs a manager with real mounts.
func onMachine(t *testing.T, root string) (manager *volumes.Manager, stop func()) {
	t.Helper()
	manager, err := volumes.New(volumes.Config{
		PodsDir: root, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		Plugins: []volumes.Plugin{&volumes.EmptyDir{Mounter: volumes.Machine{}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = manager.Run(ctx) })
	return manager, func() {
		cancel()
		running.Wait()
	}
}

// TestAKillBeforeAnySystemCallLeavesNothingBehind kills a real process before each system call of a volume's life. The
// next process must be able to set up the volume and to remove it.
func TestAKillBeforeAnySystemCallLeavesNothingBehind(t *testing.T) {
	if root := os.Getenv("VOLUMES_TEST_ROOT"); root != "" {
		manager, stop := onMachine(t, root)
		defer stop()
		pod := killPod(v1.StorageMedium(os.Getenv("VOLUMES_TEST_MEDIUM")))
		manager.Want(t.Context(), pod)
		if err := manager.Wait(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if err := manager.Release(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		return
	}
	needsMounts(t)
	for medium, want := range killScenarios() {
		t.Run("medium "+string(medium), func(t *testing.T) {
			for n := range len(want) + 1 {
				for _, comesBack := range []bool{true, false} {
					killedAt(t, medium, want, n, comesBack)
				}
			}
		})
	}
}

// killedAt kills a process before its nth call, or not at all, and lets the next process take over.
func killedAt(t *testing.T, medium v1.StorageMedium, want []string, n int, comesBack bool) {
	t.Helper()
	root := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAKillBeforeAnySystemCallLeavesNothingBehind$")
	cmd.Env = append(os.Environ(), "VOLUMES_TEST_ROOT="+root, "VOLUMES_TEST_MEDIUM="+string(medium))
	tr := &killpoint.Tracer{Root: root, Kill: n}
	status := tr.Run(t, cmd)
	if n > 0 {
		want = want[:n]
	}
	if !slices.Equal(tr.Calls, want) || status.Signaled() != (n > 0) {
		t.Fatalf("the process ended with %#x after\n%s\nwant\n%s", status, strings.Join(tr.Calls, "\n"), strings.Join(want, "\n"))
	}
	manager, stop := onMachine(t, root)
	defer stop()
	pod, dir := killPod(medium), filepath.Join(root, "u1/volumes/kubernetes.io~empty-dir/data")
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if comesBack {
		manager.Want(t.Context(), pod)
		if err := manager.Wait(t.Context(), pod); err != nil {
			t.Fatalf("killed before call %d: %v", n, err)
		}
		mode := fs.ModeDir | fs.ModeSetgid | 0o777
		if medium == v1.StorageMediumMemory {
			mode |= fs.ModeSticky
		}
		info, err := os.Stat(dir)
		if err != nil || info.Mode() != mode || info.Sys().(*syscall.Stat_t).Gid != 4711 { //nolint:forcetypeassert // it is Linux
			t.Errorf("killed before call %d: %v, %v", n, info, err)
		}
		if at := mountsAt(t, root); len(at) > 1 || (len(at) == 1) != (medium == v1.StorageMediumMemory) {
			t.Errorf("killed before call %d: mounted at %v", n, at)
		}
	}
	if err := manager.Release(t.Context(), pod.UID); err != nil {
		t.Fatalf("killed before call %d: %v", n, err)
	}
	if at := mountsAt(t, root); len(at) > 0 {
		t.Errorf("killed before call %d: mounted afterwards: %v", n, at)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("killed before call %d: afterwards: %v", n, err)
	}
	if err := rmtree.All(filepath.Join(root, "u1")); err != nil { // as when the pod's directory is removed
		t.Error(err)
	}
}

// mountsAt returns the mount points below a directory.
func mountsAt(t *testing.T, root string) []string {
	t.Helper()
	points, err := volumes.Machine{}.List()
	if err != nil {
		t.Fatal(err)
	}
	var at []string
	for _, p := range points {
		if strings.HasPrefix(p.Path, root) {
			at = append(at, p.Path)
		}
	}
	return at
}

// TestAFolderOfPodsBehindALink checks a mount table with other paths of the volumes than the configuration, because of
// a symbolic link.
func TestAFolderOfPodsBehindALink(t *testing.T) {
	needsMounts(t)
	root := t.TempDir()
	there, link := filepath.Join(root, "there"), filepath.Join(root, "link")
	if err := os.Mkdir(there, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(there, link); err != nil {
		t.Fatal(err)
	}
	pod := killPod(v1.StorageMediumMemory)
	t.Cleanup(func() {
		_ = unix.Unmount(filepath.Join(there, "u1/volumes/kubernetes.io~empty-dir/data"), unix.MNT_DETACH)
	})
	for range 2 { // processes
		manager, stop := onMachine(t, link)
		manager.Want(t.Context(), pod)
		if err := manager.Wait(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		stop()
	}
	if at := mountsAt(t, root); len(at) != 1 {
		t.Errorf("mounted at %v, want exactly one", at)
	}
	manager, stop := onMachine(t, link)
	defer stop()
	if err := manager.Release(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if at := mountsAt(t, root); len(at) > 0 {
		t.Errorf("afterwards at %v, want none", at)
	}
}
