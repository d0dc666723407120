package subpath_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/require"
)

// TestAVolumeThatHangsIsWaitedForNoLongerThanTheContextSays uses a FUSE file system whose server does not answer.
// Nothing must be mounted when it answers later.
func TestAVolumeThatHangsIsWaitedForNoLongerThanTheContextSays(t *testing.T) {
	r := newRig(t)
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	require.NoError(t, err)
	defer device.Close() //nolint:errcheck // closed below; this is for a test that fails before
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())
	require.NoError(t, unix.Mount("subpath-test", r.volume, "fuse", 0, options))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if target, err := r.mounts.Prepare(ctx, r.request("a/b")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("mounted at %q, error %v, want %v", target, err, context.DeadlineExceeded)
	}
	r.must(r.mounts.Clean(r.podDir, "data"))
	r.must(device.Close()) // pending requests then get an error
	r.must(unix.Unmount(r.volume, unix.MNT_DETACH))
	r.clean()
}
