package sharedmount_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/sharedmount"
	"github.com/quartet-node/quartet/test/require"
)

// inMountNamespace calls do on a thread with a mount namespace of its own whose mounts are private, as on a machine
// without systemd.
func inMountNamespace(t *testing.T, do func()) {
	t.Helper()
	require.Root(t, "a mount namespace")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			t.Errorf("making a mount namespace: %v", err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			t.Errorf("making its root private: %v", err)
			return
		}
		do()
	}()
	<-done
}

func mountOf(t *testing.T, dir string) (point string, shared bool) {
	t.Helper()
	at, err := machine.This().MountOf(dir)
	if err != nil || at == nil {
		t.Errorf("the mount of %s: %v", dir, err)
		return "", false
	}
	return at.Mountpoint, machine.IsShared(at)
}

func TestADirectoryBecomesASharedMountAndIsNoneAgain(t *testing.T) {
	dir := t.TempDir()
	inMountNamespace(t, func() {
		// A process that was killed between the two calls has left a private mount.
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			t.Error(err)
			return
		}
		for i, want := range []bool{true, false} {
			if made, err := sharedmount.Make(dir); err != nil || made != want {
				t.Errorf("call %d: made %v (%v), want %v", i, made, err, want)
			}
		}
		if point, shared := mountOf(t, dir); point != dir || !shared {
			t.Errorf("the directory lies on %s, shared: %v", point, shared)
		}
		below := filepath.Join(dir, "volume")
		if err := errors.Join(os.Mkdir(below, 0o700), unix.Mount("tmpfs", below, "tmpfs", 0, "")); err != nil {
			t.Error(err)
			return
		}
		if err := sharedmount.Undo(dir); !errors.Is(err, unix.EBUSY) {
			t.Errorf("the mount of a directory with a volume is removed: %v", err)
		}
		if err := unix.Unmount(below, 0); err != nil {
			t.Error(err)
		}
		// Such as the lock of another process of the node that is about to end.
		open, err := os.Create(filepath.Join(dir, "lock"))
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = open.Close() }()
		for range 2 {
			if err := sharedmount.Undo(dir); err != nil {
				t.Error(err)
			}
		}
		if _, err := open.WriteString("held"); err != nil {
			t.Errorf("a file that was open: %v", err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "lock")); err != nil || string(data) != "held" {
			t.Errorf("the file that was open has %q (%v), want %q", data, err, "held")
		}
		if point, shared := mountOf(t, dir); point == dir || shared {
			t.Errorf("afterwards the directory lies on %s, shared: %v", point, shared)
		}
	})
}

// A disk that is mounted there belongs to the machine: it is covered by a shared bind mount of itself, and stays at the
// end.
func TestADiskStaysMounted(t *testing.T) {
	dir := t.TempDir()
	inMountNamespace(t, func() {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Error(err)
			return
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Error(err)
		}
		if made, err := sharedmount.Make(dir); err != nil || !made {
			t.Errorf("made %v (%v), want true", made, err)
		}
		for range 2 {
			if err := sharedmount.Undo(dir); err != nil {
				t.Error(err)
			}
		}
		if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
			t.Errorf("the disk is gone: %v", err)
		}
		if _, shared := mountOf(t, dir); shared {
			t.Error("the disk's mount is shared")
		}
	})
}

// TestADiskBelowStaysMounted has a disk of the machine in the directory, such as one for images or claims. It is there
// with the shared mount, too, and stays at the end.
func TestADiskBelowStaysMounted(t *testing.T) {
	dir := t.TempDir()
	inMountNamespace(t, func() {
		disk := filepath.Join(dir, "disk")
		err := errors.Join(os.Mkdir(disk, 0o700), unix.Mount("tmpfs", disk, "tmpfs", 0, ""),
			os.WriteFile(filepath.Join(disk, "file"), nil, 0o600))
		if err != nil {
			t.Error(err)
			return
		}
		there := func(when string) {
			if _, err := os.Stat(filepath.Join(disk, "file")); err != nil {
				t.Errorf("%s the disk is not there: %v", when, err)
			}
		}
		if made, err := sharedmount.Make(dir); err != nil || !made {
			t.Errorf("made %v (%v), want true", made, err)
		}
		there("with the shared mount")
		if _, shared := mountOf(t, disk); !shared {
			t.Error("the disk's mount is not shared")
		}
		volume := filepath.Join(disk, "volume")
		if err := errors.Join(os.Mkdir(volume, 0o700), unix.Mount("tmpfs", volume, "tmpfs", 0, "")); err != nil {
			t.Error(err)
			return
		}
		if err := sharedmount.Undo(dir); !errors.Is(err, unix.EBUSY) {
			t.Errorf("the mount of a directory with a volume is removed: %v", err)
		}
		if err := unix.Unmount(volume, 0); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := sharedmount.Undo(dir); err != nil {
				t.Error(err)
			}
		}
		there("afterwards")
		if point, shared := mountOf(t, disk); point != disk || shared {
			t.Errorf("afterwards the disk is mounted on %s, shared: %v", point, shared)
		}
	})
}

func TestASharedMountIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	inMountNamespace(t, func() {
		if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
			t.Error(err)
			return
		}
		if made, err := sharedmount.Make(dir); err != nil || made {
			t.Errorf("made %v (%v), want false", made, err)
		}
		if err := sharedmount.Undo(dir); err != nil {
			t.Error(err)
		}
	})
}
