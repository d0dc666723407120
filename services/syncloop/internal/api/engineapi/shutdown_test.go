package engineapi_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/test/eventually"
)

// runFrom starts a pod of a source and adds it to the store.
func (r *rig) runFrom(t *testing.T, source, name string, policy v1.RestartPolicy) {
	t.Helper()
	pod := fakenode.Pod(name, name, policy)
	pod.Annotations = map[string]string{podset.AnnotationSource: source}
	r.store.SetPod(pod, source, "")
	r.pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, nil)
	eventually.That(t, name+" runs", func() bool { return slices.Contains(r.node.Running(), name) })
}

func TestPodsAreEndedBeforeAShutdown(t *testing.T) {
	r := start(t)
	request := &enginev1.ShutDownPodsRequest{Pods: []*enginev1.PodEnd{{PodUid: "web", GracePeriodSeconds: 20}, {PodUid: "static", GracePeriodSeconds: -3}, {PodUid: "unknown"}}}
	_, err := r.client.ShutDownPods(t.Context(), request)
	wantCode(t, err, codes.Unavailable)
	r.store.Open()
	r.store.SetWaiting("")
	r.runFrom(t, "api", "web", v1.RestartPolicyAlways)
	r.runFrom(t, "file", "static", v1.RestartPolicyAlways)
	r.runFrom(t, "api", "stays", v1.RestartPolicyAlways)
	if _, err := r.client.ShutDownPods(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if got := r.node.Running(); !slices.Equal(got, []string{"stays"}) {
		t.Errorf("when the call returns %v run, want %v", got, []string{"stays"})
	}
	for _, call := range []string{"kill web 20", "kill static 1"} {
		if !slices.Contains(r.node.Calls(), call) {
			t.Errorf("calls %v, want %s", r.node.Calls(), call)
		}
	}
	pods, err := r.store.Pods()
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		if pod.Name == "stays" {
			continue
		}
		const message = "Pod was terminated in response to imminent node shutdown."
		if s := pod.Status; s.Phase != v1.PodFailed || s.Reason != "Terminated" || s.Message != message {
			t.Errorf("%s is %s, %s, %s, want %s, %q and %s",
				pod.Name, s.Phase, s.Reason, s.Message, v1.PodFailed, "Terminated", message)
		}
		i := slices.IndexFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget })
		if i < 0 || pod.Status.Conditions[i].Status != v1.ConditionTrue ||
			pod.Status.Conditions[i].Reason != v1.PodReasonTerminationByKubelet || pod.Status.Conditions[i].Message != message {
			t.Errorf("%s has the conditions %v", pod.Name, pod.Status.Conditions)
		}
	}
	// A repeated call has the same result. A static pod is ended only for this boot.
	if _, err := r.client.ShutDownPods(t.Context(), request); err != nil {
		t.Error(err)
	}
	if stay := r.endedInBoot(t, "this one"); len(stay) != 2 {
		t.Errorf("in this boot %v stay ended, want 2 entries", stay)
	}
	if stay := r.endedInBoot(t, "the next one"); !slices.Equal(stay, []types.UID{"web"}) {
		t.Errorf("in the next boot %v stay ended, want only %q", stay, "web")
	}
}

func TestACanceledWaitForTheEndOfPodsFails(t *testing.T) {
	r := start(t)
	r.store.Open()
	r.store.SetWaiting("")
	r.runFrom(t, "file", "a", v1.RestartPolicyAlways)
	r.node.SetScript(fakenode.Script{
		Kill: func(ctx context.Context, _ *v1.Pod, _ int64) error { <-ctx.Done(); return ctx.Err() },
	})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := r.client.ShutDownPods(ctx, &enginev1.ShutDownPodsRequest{
			Pods: []*enginev1.PodEnd{{PodUid: "a", GracePeriodSeconds: 5}},
		})
		failed <- err
	}()
	eventually.That(t, "a is being killed", func() bool { return slices.Contains(r.node.Calls(), "kill a 5") })
	cancel()
	wantCode(t, <-failed, codes.Canceled)
}

// If the runtime was down, a pod may have no worker when the shutdown begins. When it gets one, it is ended with the
// grace period of the shutdown.
func TestAPodWithoutAWorkerEndsWithTheGracePeriodOfTheShutdown(t *testing.T) {
	r := start(t)
	r.store.Open()
	r.store.SetWaiting("")
	pod := fakenode.Pod("a", "a", v1.RestartPolicyAlways)
	r.node.Run(pod)
	r.node.SetScript(fakenode.Script{Kill: func(ctx context.Context, _ *v1.Pod, grace int64) error {
		if grace == 5 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}})
	observed, err := r.node.GetPodStatus(t.Context(), "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.store.SetPod(pod, "file", "")
	r.store.Observe("a", observed)
	failed := make(chan error, 1)
	go func() {
		_, err := r.client.ShutDownPods(t.Context(), &enginev1.ShutDownPodsRequest{
			Pods: []*enginev1.PodEnd{{PodUid: "a", GracePeriodSeconds: 5}},
		})
		failed <- err
	}()
	eventually.That(t, "it is to end", func() bool { _, ended := r.book.Get("a"); return ended })
	// as the loop does, which does not know the grace period
	r.pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, &podworkers.End{})
	if err := <-failed; err != nil || !slices.Contains(r.node.Calls(), "kill a 5") {
		t.Errorf("got %v, calls %v, want %q among them", err, r.node.Calls(), "kill a 5")
	}
}

// A pod that comes during a shutdown may be in a list of nodestatus before the loop refuses it. It is refused either
// way, in the kubelet's words. One that an earlier process has ended keeps its reason.
func TestAPodThatHasNotBegunIsRefusedAtAShutdown(t *testing.T) {
	r := start(t)
	r.store.Open()
	r.store.SetWaiting("")
	r.book.Put("ended", podstore.Eviction{Reason: "Terminated", Message: "m"})
	var ends []*enginev1.PodEnd
	for _, name := range []string{"ended", "late"} {
		pod := fakenode.Pod(name, name, v1.RestartPolicyAlways)
		pod.Annotations = map[string]string{podset.AnnotationSource: "file"}
		r.store.SetPod(pod, "file", "")
		ends = append(ends, &enginev1.PodEnd{PodUid: name, GracePeriodSeconds: 5})
	}
	if _, err := r.client.ShutDownPods(t.Context(), &enginev1.ShutDownPodsRequest{Pods: ends}); err != nil {
		t.Fatal(err)
	}
	if s := r.store.Status("ended"); s.Phase != v1.PodFailed || s.Reason != "Terminated" || s.Message != "m" {
		t.Errorf("what has ended is %s, %s, %s", s.Phase, s.Reason, s.Message)
	}
	const message = "Pod was rejected: Pod was rejected as the node is shutting down."
	s := r.store.Status("late")
	if s.Phase != v1.PodFailed || s.Reason != "NodeShutdown" || s.Message != message {
		t.Errorf("what has not begun is %s, %s, %s", s.Phase, s.Reason, s.Message)
	}
	for _, c := range s.Conditions {
		if c.Type == v1.DisruptionTarget {
			t.Errorf("nothing was disrupted: %v", c)
		}
	}
	if stay := r.endedInBoot(t, "this one"); !slices.Contains(stay, "late") {
		t.Errorf("in this boot %v stay ended, want late among them", stay)
	}
	if stay := r.endedInBoot(t, "the next one"); slices.Contains(stay, "late") {
		t.Errorf("in the next boot %v stay ended, want late to run", stay)
	}
}

func TestStatusesAreWaitedFor(t *testing.T) {
	r := start(t)
	r.unsent.Store(1)
	done := make(chan error, 1)
	go func() {
		_, err := r.client.AwaitStatuses(t.Context(), &enginev1.AwaitStatusesRequest{})
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("the API server lacks a status, and the answer is %v", err)
	case <-time.After(300 * time.Millisecond): // long enough for several checks
	}
	r.unsent.Store(0)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// endedInBoot returns the pods that a later process does not start in a boot.
func (r *rig) endedInBoot(t *testing.T, boot string) []types.UID {
	t.Helper()
	book := evictionbook.Open(evictionbook.Config{
		Path: r.bookFile, Boot: boot, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err := book.Close(); err != nil {
		t.Fatal(err)
	}
	return book.UIDs()
}
