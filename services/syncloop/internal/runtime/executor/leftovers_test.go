package executor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/test/require"
)

func TestLeftoversAreFoundAndCleanedUp(t *testing.T) {
	n := newNode(t)
	for _, dir := range []string{
		filepath.Join(n.config.PodLogsDir, "default_web_u1", "main"), filepath.Join(n.config.RootDir, "pods", "u1", "volumes"),
		filepath.Join(n.config.RootDir, "pods", "u2"), filepath.Join(n.config.PodLogsDir, "not-a-pod"),
	} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	pods, err := n.manager.Leftovers()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, pod := range pods {
		got = append(got, pod.Namespace+"/"+pod.Name+"/"+string(pod.UID))
		// The runtime has nothing of these pods.
		if err := n.manager.CleanUpPod(n.ctx, pod, &lifecyclev1.PodStatus{Uid: string(pod.UID)}); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"default/web/u1", "//u2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if pods, err := n.manager.Leftovers(); err != nil || len(pods) > 0 {
		t.Errorf("still there: %v, %v", pods, err)
	}
	if _, err := os.Stat(filepath.Join(n.config.PodLogsDir, "not-a-pod")); err != nil {
		t.Errorf("a folder that belongs to no pod: %v", err)
	}
}

// TestNothingBelowAMountPointIsRemovedWithAPod has a mount in the folder of a removed pod, and files that this version
// does not know.
func TestNothingBelowAMountPointIsRemovedWithAPod(t *testing.T) {
	n := newNode(t)
	gone := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u-gone"}}
	dir := filepath.Join(n.config.RootDir, "pods", "u-gone")
	mounted := filepath.Join(dir, "volumes", "example.com~other", "data")
	if err := os.MkdirAll(mounted, 0o750); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, unix.Mount("tmpfs", mounted, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(mounted, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.manager.CleanUpPod(n.ctx, gone, nil); err == nil ||
		!strings.Contains(err.Error(), mounted+" is mounted there; unmount it") {
		t.Errorf("CleanUpPod() error = %v, want an error with %q", err, mounted+" is mounted there; unmount it")
	}
	if _, err := os.Stat(filepath.Join(mounted, "precious")); err != nil {
		t.Errorf("what was mounted: %v", err)
	}
	if err := unix.Unmount(mounted, 0); err != nil {
		t.Fatal(err)
	}
	if err := n.manager.CleanUpPod(n.ctx, gone, nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("afterwards: %v, want fs.ErrNotExist", err)
	}
}
