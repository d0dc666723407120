package podworkers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestPodIsRunAndRemoved(t *testing.T) {
	r := start(t)
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "web runs", r.running("web"))
	stopped := make(chan struct{})
	if !r.remove("u1", podworkers.End{Grace: ptr.To[int64](5), Stopped: []chan<- struct{}{stopped}}) {
		t.Fatal("there is no worker to end")
	}
	<-stopped
	eventually.That(t, "nothing is left", func() bool { return len(r.pool.List()) == 0 && len(r.node.UIDs()) == 0 && r.store.Len() == 0 })
	if calls := r.node.Calls(); !slices.Contains(calls, "kill web 5") || !slices.Contains(calls, "clean u1") {
		t.Errorf("calls: %v, want %q among them and %q among them", calls, "kill web 5", "clean u1")
	}
}

func TestEndOfTheProcessStopsNoPod(t *testing.T) {
	r := newRig(fakenode.New())
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "web runs", r.running("web"))
	r.stop()
	if got := r.node.Running(); !slices.Equal(got, []string{"web"}) {
		t.Errorf("running after the process: %v", got)
	}
	for _, call := range r.node.Calls() {
		if strings.HasPrefix(call, "kill") {
			t.Errorf("the process ended, and did %q, want text not beginning with %q", call, "kill")
		}
	}
}

func TestEndOfTheProcessCutsAKillShort(t *testing.T) {
	r := newRig(fakenode.New())
	killing := make(chan struct{})
	r.node.SetScript(fakenode.Script{Kill: func(ctx context.Context, _ *v1.Pod, _ int64) error {
		close(killing)
		<-ctx.Done()
		return ctx.Err()
	}})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "web runs", r.running("web"))
	r.remove("u1", podworkers.End{})
	<-killing
	r.stop()
}

func TestShorterGraceTakesEffectAtOnce(t *testing.T) {
	r := start(t)
	began := make(chan int64, 4)
	r.node.SetScript(fakenode.Script{Kill: func(ctx context.Context, _ *v1.Pod, grace int64) error {
		began <- grace
		if grace > 2 {
			<-ctx.Done() // the container ignores SIGTERM
			return ctx.Err()
		}
		return nil
	}})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "web runs", r.running("web"))
	r.remove("u1", podworkers.End{})
	if got := <-began; got != 30 {
		t.Fatalf("first kill with %d s, want 30", got)
	}
	// Neither the same nor a longer grace period interrupts the running kill.
	r.pool.End("u1", podworkers.Cause{}, podworkers.End{})
	r.pool.End("u1", podworkers.Cause{}, podworkers.End{Grace: ptr.To[int64](60)})
	r.pool.End("u1", podworkers.Cause{}, podworkers.End{Grace: ptr.To[int64](2)})
	if got := <-began; got != 2 {
		t.Fatalf("second kill with %d s, want 2", got)
	}
	eventually.That(t, "web is gone", func() bool { return len(r.pool.List()) == 0 })
}

func TestTerminationCutsASyncShort(t *testing.T) {
	r := start(t)
	pulling := make(chan struct{})
	var once sync.Once
	r.node.SetScript(fakenode.Script{Sync: func(ctx context.Context, _ *v1.Pod) error {
		once.Do(func() { close(pulling) })
		<-ctx.Done() // an image pull that does not end
		return ctx.Err()
	}})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	<-pulling
	r.remove("u1", podworkers.End{})
	eventually.That(t, "web is gone", func() bool { return len(r.pool.List()) == 0 })
}

func TestChangedStaticPodStartsWhenTheOldOneIsGone(t *testing.T) {
	r := start(t)
	stopping, mayStop := make(chan struct{}), make(chan struct{})
	r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
		close(stopping)
		<-mayStop
		return nil
	}})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "web runs", r.running("web"))
	r.remove("u1", podworkers.End{})
	r.want(fakenode.Pod("u2", "web", v1.RestartPolicyAlways))
	<-stopping
	if slices.Contains(r.node.UIDs(), "u2") {
		t.Fatal("the new pod was started beside the old one")
	}
	close(mayStop)
	eventually.That(t, "the new pod runs alone", func() bool { return slices.Equal(r.node.UIDs(), []types.UID{"u2"}) && len(r.node.Running()) == 1 })
}

func TestStaticPodComesBackUnchangedWhileItEnds(t *testing.T) {
	r := start(t)
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	stopping, mayStop := make(chan struct{}), make(chan struct{})
	r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
		close(stopping)
		<-mayStop
		return nil
	}})
	r.want(pod)
	eventually.That(t, "web runs", r.running("web"))
	first := r.node.Container("u1")
	r.remove("u1", podworkers.End{})
	<-stopping
	r.want(pod)
	close(mayStop)
	eventually.That(t, "web runs again", func() bool { c := r.node.Container("u1"); return c != "" && c != first && len(r.node.Running()) == 1 })
	if !r.store.Has("u1") {
		t.Error("the pod that came back is not known")
	}
}

func TestWaitingPodThatIsRemovedIsNeverStarted(t *testing.T) {
	r := start(t)
	mayStop := make(chan struct{})
	r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
		<-mayStop
		return nil
	}})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "web runs", r.running("web"))
	r.remove("u1", podworkers.End{})
	r.want(fakenode.Pod("u2", "web", v1.RestartPolicyAlways))
	r.remove("u2", podworkers.End{})
	r.want(fakenode.Pod("u3", "web", v1.RestartPolicyAlways))
	close(mayStop)
	eventually.That(t, "the third runs", func() bool { return slices.Equal(r.node.UIDs(), []types.UID{"u3"}) && len(r.node.Running()) == 1 })
	if r.store.Has("u2") {
		t.Error("the pod that never ran is still shown")
	}
}

func TestFinishedPodStaysAndIsNotStartedAgain(t *testing.T) {
	node := fakenode.New()
	r := newRig(node)
	pod := fakenode.Pod("u1", "job", v1.RestartPolicyNever)
	r.want(pod)
	eventually.That(t, "job runs", r.running("job"))
	node.Exit("u1", 0)
	r.pool.Poke("u1", podworkers.Cause{Kind: podworkers.CauseLost})
	eventually.That(t, "job is terminated", func() bool { return r.state("u1") == enginev1.WorkerState_WORKER_STATE_TERMINATED })
	if got := r.store.Phase("u1"); got != v1.PodSucceeded {
		t.Errorf("phase %q, want %q", got, v1.PodSucceeded)
	}
	container := node.Container("u1")
	r.stop()

	// The next process knows that the pod has ended by its ended container.
	again := newRig(node)
	defer again.stop()
	again.want(pod)
	eventually.That(t, "job is terminated again", func() bool { return again.state("u1") == enginev1.WorkerState_WORKER_STATE_TERMINATED })
	if got := node.Container("u1"); got != container {
		t.Errorf("container %q, then %q", container, got)
	}
	again.remove("u1", podworkers.End{})
	eventually.That(t, "nothing is left", func() bool { return len(node.UIDs()) == 0 && len(again.pool.List()) == 0 })
}

func TestErrorsAreTriedAgain(t *testing.T) {
	r := start(t)
	var mu sync.Mutex
	failures := 2
	r.node.SetScript(fakenode.Script{Sync: func(context.Context, *v1.Pod) error {
		mu.Lock()
		defer mu.Unlock()
		if failures--; failures >= 0 {
			return errors.New("the runtime is moody")
		}
		return nil
	}})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "web runs", r.running("web"))
	eventually.That(t, "the error is over", func() bool { return r.pool.List()[0].GetLastError() == "" })
}

func TestLostWorkIsDoneWhenPlegIsBack(t *testing.T) {
	r := start(t)
	r.node.SetScript(fakenode.Script{
		Observe: func(context.Context, types.UID) error { return errors.New("pleg is away") },
	})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "the error shows", func() bool { return strings.Contains(r.pool.List()[0].GetLastError(), "pleg is away") })
	if at := r.pool.List()[0].GetNextSyncAt(); at == nil {
		t.Error("no next try is named")
	}
	r.node.SetScript(fakenode.Script{})
	r.pool.RetryFailed()
	eventually.That(t, "web runs", r.running("web"))
}

func TestEndedContainersBeyondOneAreRemoved(t *testing.T) {
	r := start(t)
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	for range 3 {
		eventually.That(t, "web runs", r.running("web"))
		container := r.node.Container("u1")
		r.node.Exit("u1", 1)
		r.pool.Poke("u1", podworkers.Cause{Kind: podworkers.CauseLost})
		eventually.That(t, "web runs again", func() bool { return r.node.Container("u1") != container })
	}
	eventually.That(t, "ended containers are removed", func() bool { return slices.Contains(r.node.Calls(), "prune u1") })
	status, err := r.node.GetPodStatus(t.Context(), "u1", 0)
	if err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "one running and one ended are left", func() bool {
		status, err = r.node.GetPodStatus(t.Context(), "u1", 0)
		return err == nil && len(status.GetContainers()) == 2
	})
}

// TestRemovedPodEndsTheRunningPodOfItsName removes a pod that runs from before the start of this process, while another
// pod of its name has been started.
func TestRemovedPodEndsTheRunningPodOfItsName(t *testing.T) {
	node := fakenode.New()
	node.Run(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	r := newRig(node)
	defer r.stop() // not start, because this test breaks a rule at the beginning
	r.want(fakenode.Pod("u2", "web", v1.RestartPolicyNever))
	eventually.That(t, "both run", r.running("web", "web"))
	old := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	r.store.SetPod(old, "", "")
	r.pool.Want(old, podworkers.Cause{}, &podworkers.End{Removed: true})
	eventually.That(t, "only the new one is left", func() bool { return slices.Equal(node.UIDs(), []types.UID{"u2"}) })
	// The new pod still has the name.
	r.want(fakenode.Pod("u3", "web", v1.RestartPolicyAlways))
	if got := r.state("u3"); got != enginev1.WorkerState_WORKER_STATE_SYNCING || slices.Contains(node.UIDs(), "u3") {
		t.Errorf("u3 is %v, pods: %v, want %v and %q not among them",
			got, node.UIDs(), enginev1.WorkerState_WORKER_STATE_SYNCING, "u3")
	}
	r.remove("u2", podworkers.End{})
	eventually.That(t, "u3 runs alone", func() bool { return slices.Equal(node.UIDs(), []types.UID{"u3"}) })
}

// TestAPodThatIsDeletedWhileItWaitsForItsNameEndsAtOnce: nothing of the pod runs, so it ends at once and has failed.
func TestAPodThatIsDeletedWhileItWaitsForItsNameEndsAtOnce(t *testing.T) {
	r := start(t)
	mayStop := make(chan struct{})
	stop := sync.OnceFunc(func() { close(mayStop) })
	defer stop()
	r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
		<-mayStop
		return nil
	}})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "the first runs", r.running("web"))
	r.remove("u1", podworkers.End{})
	second := fakenode.Pod("u2", "web", v1.RestartPolicyAlways)
	r.want(second)
	if !r.pool.Has("u2") || r.state("u2") != enginev1.WorkerState_WORKER_STATE_SYNCING {
		t.Fatalf("the second is %v", r.state("u2"))
	}
	r.pool.Want(second, podworkers.Cause{Kind: podworkers.CauseConfig}, &podworkers.End{})
	eventually.That(t, "the second has ended", func() bool { return r.state("u2") == enginev1.WorkerState_WORKER_STATE_TERMINATED })
	if phase := r.store.Phase("u2"); phase != v1.PodFailed {
		t.Errorf("its phase is %s, want %s", phase, v1.PodFailed)
	}
	if got := r.node.Running(); !slices.Equal(got, []string{"web"}) {
		t.Errorf("%v run, want %v", got, []string{"web"})
	}
	r.remove("u2", podworkers.End{})
	eventually.That(t, "the second is gone", func() bool { return !r.pool.Has("u2") })
	// The first pod still has the name.
	r.want(fakenode.Pod("u3", "web", v1.RestartPolicyAlways))
	stop()
	eventually.That(t, "the third runs alone", func() bool { return slices.Equal(r.node.UIDs(), []types.UID{"u3"}) })
}

func TestPodStartsWhenAllOfItsNameAreGone(t *testing.T) {
	node := fakenode.New()
	mayStop := map[types.UID]chan struct{}{"u1": make(chan struct{}), "u2": make(chan struct{})}
	node.SetScript(fakenode.Script{Kill: func(_ context.Context, pod *v1.Pod, _ int64) error {
		<-mayStop[pod.UID]
		return nil
	}})
	node.Run(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	node.Run(fakenode.Pod("u2", "web", v1.RestartPolicyAlways))
	broken := len(node.Broken())
	r := newRig(node)
	defer r.stop()
	for _, uid := range []string{"u1", "u2"} {
		pod := fakenode.Pod(uid, "web", v1.RestartPolicyAlways)
		r.store.SetPod(pod, "", "")
		r.pool.Want(pod, podworkers.Cause{}, &podworkers.End{Removed: true})
	}
	r.want(fakenode.Pod("u3", "web", v1.RestartPolicyAlways))
	close(mayStop["u1"])
	eventually.That(t, "the first is gone", func() bool { return !slices.Contains(node.UIDs(), "u1") && len(r.pool.List()) == 2 })
	close(mayStop["u2"])
	eventually.That(t, "the new one runs alone", func() bool { return slices.Equal(node.UIDs(), []types.UID{"u3"}) })
	if got := node.Broken(); len(got) > broken {
		t.Errorf("broken: %v, want at most %d rules", got, broken)
	}
}

func TestPodWhoseServiceWasAwayIsTriedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range []error{
			status.Error(codes.Unavailable, "connection refused"),
			&cri.NotConnectedError{Endpoint: "unix:///run/x.sock", Cause: errors.New("no such file")},
		} {
			node := fakenode.New()
			var once sync.Once
			node.SetScript(fakenode.Script{Sync: func(context.Context, *v1.Pod) (failure error) {
				once.Do(func() { failure = fmt.Errorf("create the sandbox: %w", err) })
				return failure
			}})
			r := newRigWith(node, time.Minute)
			begun := time.Now()
			r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
			eventually.That(t, "web runs", r.running("web"))
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("after %v it took %v", err, took)
			}
			r.stop()
		}
	})
}

func TestNothingFollowsFromAPodThatCouldNotBeInspected(t *testing.T) {
	node := fakenode.New()
	node.Run(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	node.FailInspection("u1", "the runtime does not answer for this pod")
	r := newRig(node)
	defer r.stop()
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "the worker has the reason of its wait", func() bool {
		list := r.pool.List()
		return len(list) == 1 && strings.Contains(list[0].GetLastError(), "does not answer for this pod")
	})
	if calls := node.Calls(); len(calls) > 0 {
		t.Errorf("calls: %v, want none", calls)
	}
}

func TestUnsupportedPodHasAReasonOfItsOwnAndOneWarning(t *testing.T) {
	node := fakenode.New()
	refusal := &executor.UnsupportedError{Field: "spec.hostUsers", Message: "leave it out"}
	node.SetScript(fakenode.Script{Sync: func(context.Context, *v1.Pod) error { return refusal }, SandboxError: refusal})
	r := newRig(node)
	defer r.stop()
	r.store.SetWaiting("")
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "it is tried again and again", func() bool { return len(node.Calls()) > 5 })
	pods, err := r.store.Pods()
	if err != nil || len(pods) != 1 || pods[0].Status.Reason != "UnsupportedPodSpec" {
		t.Errorf("Pods() = %v, %v, want exactly one and pods[0].Status.Reason %q", pods, err, "UnsupportedPodSpec")
	}
	if got := r.warnings.Load(); got != 1 {
		t.Errorf("%d warnings, want 1", got)
	}
}

func TestPodWhoseServiceStaysAwayIsTriedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fakenode.New()
		node.SetScript(fakenode.Script{Sync: func(context.Context, *v1.Pod) error {
			return status.Error(codes.Unavailable, "connection refused")
		}})
		r := newRigWith(node, time.Minute)
		defer r.stop()
		r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
		var waits []time.Duration
		for tries := range 5 {
			eventually.That(t, "it is tried", func() bool { return len(node.Calls()) > tries })
			eventually.That(t, "the next try is due", func() bool { _, ok := r.pool.Due().At("u1"); return ok })
			at, _ := r.pool.Due().At("u1")
			waits = append(waits, time.Until(at))
			r.pool.Poke("u1", podworkers.Cause{Kind: podworkers.CauseLost})
		}
		if waits[0] > time.Second || waits[4] < 1500*time.Millisecond {
			t.Errorf("waits: %v, want waits[0] at most %v and waits[4] at least %v", waits, time.Second, 1500*time.Millisecond)
		}
	})
}
