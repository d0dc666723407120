package rpc_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/rpc"
)

// TestASocketOnAReadOnlyDiskSaysWhatToDo, in a directory that is there and in one that would have to be made.
func TestASocketOnAReadOnlyDiskSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, path := range []string{dir + "/s.sock", dir + "/run/s.sock"} {
		_, err := rpc.ListenUnix("unix://"+path, nil, nil)
		if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), path) ||
			!strings.Contains(err.Error(), "mount a tmpfs at") {
			t.Errorf("got %v, want that the file system of %s is read-only, and to mount a tmpfs", err, path)
		}
	}
}
