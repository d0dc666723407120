package volumes_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

// TestVolumesStayWhileThePodsCannotBeListed starts a process while the directory of all pods cannot be listed. It says
// so, sets up and removes nothing of pods that it was not told about, releases those that it was told about, and finds
// the volumes when the directory can be listed again.
func TestVolumesStayWhileThePodsCannotBeListed(t *testing.T) {
	r := newRig(t)
	require.NoError(t, r.want(newPod("kept", "data")))
	require.NoError(t, r.want(newPod("ends", "data")))
	r.stop()
	aside := r.dir + "-aside"
	r.start() // with the directory, because New makes it
	require.NoError(t, os.Rename(r.dir, aside))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(aside)) })
	require.NoError(t, os.Symlink(filepath.Base(r.dir), r.dir))
	r.manager.Forget()
	if r.manager.Unread() == nil || len(r.manager.List()) > 0 {
		t.Fatalf("it lists %v, and knows of no problem", r.manager.List())
	}
	if err := r.release(types.UID("ends")); err == nil {
		t.Error("a pod is released although its volumes cannot be listed")
	}
	require.NoError(t, os.Remove(r.dir))
	require.NoError(t, os.Rename(aside, r.dir))
	if _, err := os.Stat(r.path("kept", r.plugin.Name(), "data")); err != nil {
		t.Errorf("the volume of a pod that was not released is gone: %v", err)
	}
	require.NoError(t, r.release("ends"))
	eventually.That(t, "the volumes are known", func() bool {
		r.clock.Step(time.Second)
		return r.manager.Unread() == nil && len(r.manager.List()) == 1
	})
	require.NoError(t, r.release("kept"))
	if left, err := filepath.Glob(filepath.Join(r.dir, "*", "volumes", "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("after all pods were released there are %q: %v", left, err)
	}
}
