package executor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/test/require"
)

// TestAContainerDoesNotOverwriteLogsThatCannotBeListed starts a container whose folder of logs leads to itself. Another
// container of the pod starts, and this one does when the folder can be listed.
func TestAContainerDoesNotOverwriteLogsThatCannotBeListed(t *testing.T) {
	n := newNode(t)
	pod := newPod("a", "b")
	dir := filepath.Join(n.config.PodLogsDir, "shop_web_u-1", "a")
	require.NoError(t, os.MkdirAll(filepath.Dir(dir), 0o750))
	require.NoError(t, os.Symlink(dir, dir))
	_, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if err == nil || !strings.Contains(err.Error(), "the earlier logs of the container are not known and could be overwritten") {
		t.Errorf("SyncPod() = %v", err)
	}
	names := func() (names []string) {
		for _, c := range n.observe(pod).GetContainers() {
			names = append(names, c.GetName())
		}
		slices.Sort(names)
		return names
	}
	if got := names(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("the pod has the containers %q, want b", got)
	}
	require.NoError(t, os.Remove(dir))
	n.sync(pod)
	if got := names(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("when the logs can be listed the pod has the containers %q, want a and b", got)
	}
}
