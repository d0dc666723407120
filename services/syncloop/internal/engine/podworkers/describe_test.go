package podworkers_test

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
)

// crashing is a runtime in which two containers wait for their restart.
type crashing struct{ *fakenode.Node }

func (crashing) SyncPod(context.Context, *v1.Pod, *lifecyclev1.PodStatus) (executor.Result, error) {
	return executor.Result{RetryAfter: 20 * time.Second, Reasons: map[string]executor.ContainerReason{
		"web": {Reason: "CrashLoopBackOff"}, "db": {Reason: "ImagePullBackOff"},
	}}, nil
}

func TestAWorkerReportsItsWaitAndItsDeadline(t *testing.T) {
	pool, _ := startWithEvents(t, crashing{fakenode.New()})
	pod := fakenode.Pod("u-1", "web", v1.RestartPolicyAlways)
	begun := time.Now()
	pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, nil)
	var w *enginev1.Worker
	eventually.That(t, "the next try is known", func() bool {
		w = pool.List()[0]
		return w.GetNextSyncAt() != nil && !w.GetBusy()
	})
	next, since := w.GetNextSyncAt().AsTime(), w.GetStateSince().AsTime()
	if w.GetWaitsFor() != "db: ImagePullBackOff, web: CrashLoopBackOff" || w.GetLastError() != "" || w.GetPending() {
		t.Errorf("worker %v, want WaitsFor %q, no LastError and Pending false",
			w, "db: ImagePullBackOff, web: CrashLoopBackOff")
	}
	if next.Before(begun.Add(20*time.Second)) || next.After(time.Now().Add(20*time.Second)) || since.Before(begun) ||
		since.After(next) {
		t.Errorf("next try %v, in its state since %v, updated at %v", next, since, begun)
	}
}

func TestAWorkerReportsItsDeadlineAndTheWaitingPod(t *testing.T) {
	r := start(t)
	stopping := make(chan struct{})
	release := make(chan struct{})
	r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
		close(stopping)
		<-release
		return nil
	}})
	r.want(fakenode.Pod("u-1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "it runs", r.running("web"))
	if got := r.pool.List()[0].GetTerminateBy(); got != nil {
		t.Errorf("a running pod has the deadline %v", got.AsTime())
	}
	ended := time.Now()
	r.remove("u-1", podworkers.End{Grace: ptr.To[int64](60)})
	<-stopping
	r.want(fakenode.Pod("u-2", "web", v1.RestartPolicyAlways))
	list := r.pool.List()
	first, second := list[0], list[1]
	by := first.GetTerminateBy().AsTime()
	if by.Before(ended.Add(59*time.Second)) || by.After(time.Now().Add(61*time.Second)) ||
		first.GetState() != enginev1.WorkerState_WORKER_STATE_TERMINATING || !first.GetBusy() {
		t.Errorf("the pod that is stopped: %v", first)
	}
	if !second.GetPending() || second.GetBehindPodUid() != "u-1" || second.GetWaitsFor() != "the end of the pod u-1 of its name" {
		t.Errorf("the pod that waits: %v", second)
	}
	r.want(fakenode.Pod("u-1", "other", v1.RestartPolicyAlways))
	if first := r.pool.List()[0]; first.GetPodUid() != "u-1" || !first.GetPending() {
		t.Errorf("a pod that comes back is not pending: %v", first)
	}
	close(release)
	eventually.That(t, "the two start", r.running("other", "web"))
}
