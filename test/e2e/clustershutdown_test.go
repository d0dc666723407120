package e2e

import (
	"context"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
)

// wantPodsEndedForAShutdown ends a pod of the API server and a static one as nodestatus does before a shutdown of the
// machine. It checks that the API server has the status when syncloop's call returns, and that both pods keep it across
// a kill of syncloop.
func wantPodsEndedForAShutdown(t *testing.T, pods corev1.PodInterface, nodeName string) {
	t.Helper()
	create(t, pods, nodeName, "shut-here", nil)
	place(t, "shutstatic.yaml", manifest("shutstatic", 30, "sleep"))
	names := []string{"shut-here", "shutstatic-" + nodeName}
	var request enginev1.ShutDownPodsRequest
	for _, name := range names {
		pod := awaitObject(t, pods, name, "Ready", ready)
		uid := string(pod.UID)
		if hash := pod.Annotations[v1.MirrorPodAnnotationKey]; hash != "" {
			uid = hash // the UID of a static pod
		}
		request.Pods = append(request.Pods, &enginev1.PodEnd{PodUid: uid, GracePeriodSeconds: 20})
	}
	conn, err := rpc.Dial(node.Layout.Address(layout.SyncLoop))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	engine := enginev1.NewEngineServiceClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := engine.ShutDownPods(ctx, &request); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.AwaitStatuses(ctx, &enginev1.AwaitStatusesRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || !isEndedForAShutdown(pod) {
			t.Errorf("the API server has of %s %+v, %v", name, pod.Status, err)
		}
	}
	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	for _, name := range []string{"shut", "shutstatic"} {
		pod := await(t, name, "known again", func(p *v1.Pod) bool { return p != nil })
		if !isEndedForAShutdown(pod) || slices.ContainsFunc(pod.Status.ContainerStatuses, func(c v1.ContainerStatus) bool {
			return c.State.Running != nil
		}) {
			t.Errorf("after a restart of syncloop %s has %+v", name, pod.Status)
		}
	}
	if err := pods.Delete(t.Context(), "shut-here", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitObject(t, pods, "shut-here", "gone", func(p *v1.Pod) bool { return p == nil })
}

func isEndedForAShutdown(pod *v1.Pod) bool {
	return pod != nil && pod.Status.Phase == v1.PodFailed && pod.Status.Reason == "Terminated" && pod.Status.Message == "Pod was terminated in response to imminent node shutdown." &&
		slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonTerminationByKubelet
		})
}
