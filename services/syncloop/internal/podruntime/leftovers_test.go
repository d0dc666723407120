package podruntime_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
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
		// The runtime has nothing of them.
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
		t.Errorf("a folder that is no pod's: %v", err)
	}
}
