package bundle_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/test/require"
)

// inMountNamespace calls do on a thread with a mount namespace of its own whose root is private, as on a machine
// without systemd; a command in a container runs on such a thread when it works on the machine.
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

// TestPrivateMountsBecomeSharedAndPrivateAgain: each change has one message, no change has none, and only own changes
// are undone.
func TestPrivateMountsBecomeSharedAndPrivateAgain(t *testing.T) {
	l, err := layout.New(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(l.StateDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	shared := func() bool {
		at, err := machine.This().MountOf("/")
		return err == nil && machine.IsShared(at)
	}
	inMountNamespace(t, func() {
		var notes []string
		note := func(text string) { notes = append(notes, text) }
		for range 2 {
			if err := bundle.ShareMounts(l, note); err != nil {
				t.Errorf("ShareMounts: %v", err)
			}
		}
		if !shared() || len(notes) != 1 {
			t.Errorf("the root is shared: %v, and the notes are %q", shared(), notes)
		}
		for range 2 {
			if err := bundle.UnshareMounts(l); err != nil {
				t.Errorf("UnshareMounts: %v", err)
			}
		}
		if shared() {
			t.Error("the root is still shared")
		}
		if err := unix.Mount("", "/", "", unix.MS_SHARED, ""); err != nil {
			t.Errorf("sharing the root: %v", err)
		}
		if err := bundle.ShareMounts(l, note); err != nil || len(notes) != 1 {
			t.Errorf("ShareMounts on a shared root: %v, notes %q, want exactly one", err, notes)
		}
		if err := bundle.UnshareMounts(l); err != nil || !shared() {
			t.Errorf("a root that was shared before is private now: %v", err)
		}
	})
}
