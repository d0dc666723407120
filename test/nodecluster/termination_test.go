package nodecluster

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/livenode"
)

// TestAKillInTheMiddleOfATermination: syncloop is killed during the grace period of one pod and the termination of
// another, which was deleted by force. The object of the first is removed last and has the exit of its container;
// nothing is left of either.
func TestAKillInTheMiddleOfATermination(t *testing.T) {
	const ns = "termination"
	admin := space(t, ns)
	graceful := runPod(t, admin, ns, "graceful", "sleep", "-ignore-term")
	forced := runPod(t, admin, ns, "forced", "sleep", "-ignore-term")
	changes, err := admin.CoreV1().Pods(ns).Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=graceful", ResourceVersion: graceful.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()

	if err := admin.CoreV1().Pods(ns).Delete(t.Context(), "graceful", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](5)}); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "delete", "pod", "-n", ns, "forced", "--grace-period=0", "--force")
	awaitThat(t, "the node ends both", func() bool { return len(localPods(t, ns)) == 0 })
	kill(t, "syncloop")

	last := lastOf(t, changes)
	if dirs, err := livenode.Cgroups(node.PodCgroup(graceful)); err != nil || len(dirs) > 0 {
		t.Errorf("the object is gone, and there are %q, %v", dirs, err)
	}
	if state := last.Status.ContainerStatuses[0].State.Terminated; state == nil || last.UID != graceful.UID {
		t.Errorf("the last that the cluster knows of the pod is %+v", last.Status.ContainerStatuses)
	}
	awaitThat(t, "of the pod that was deleted by force nothing is left", func() bool {
		dirs, err := livenode.Cgroups(node.PodCgroup(forced))
		return err == nil && len(dirs) == 0
	})
	awaitThat(t, "the node lists neither", func() bool {
		list, err := node.Pods(t.Context())
		return err == nil && !slices.ContainsFunc(list, func(p corev1.Pod) bool { return p.Namespace == ns })
	})
	if left := pods(t, admin, ns, ""); len(left) > 0 {
		t.Errorf("the cluster has %+v, want none", left)
	}
}

// lastOf waits until an object is removed, and returns its last state.
func lastOf(t *testing.T, changes watch.Interface) *corev1.Pod {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case event, open := <-changes.ResultChan():
			if !open {
				t.Fatal("the watch has ended")
			}
			if pod, ok := event.Object.(*corev1.Pod); ok && event.Type == watch.Deleted {
				return pod
			}
		case <-timeout.C:
			t.Fatalf("the object is not gone after %s", patience)
		}
	}
}
