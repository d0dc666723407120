package podworkers_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/test/eventually"
)

// recreate removes a pod that runs, wants it again during its end, and waits until it runs in its next life.
func (r *rig) recreate(t *testing.T, pod *v1.Pod) {
	t.Helper()
	stopping, mayStop := make(chan struct{}), make(chan struct{})
	r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
		close(stopping)
		<-mayStop
		return nil
	}})
	before := r.node.Container(pod.UID)
	r.remove(pod.UID, podworkers.End{})
	<-stopping
	r.want(pod)
	close(mayStop)
	eventually.That(t, "the pod runs in its next life", func() bool {
		return r.node.Container(pod.UID) != before && slices.Equal(r.node.Running(), []string{pod.Name})
	})
	r.node.SetScript(fakenode.Script{})
}

// TestALifeThatWaitedContinuesTheRestartCount, as with the kubelet. The resources of the earlier life are released.
func TestALifeThatWaitedContinuesTheRestartCount(t *testing.T) {
	r := start(t)
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	r.want(pod)
	eventually.That(t, "web runs", r.running("web"))
	for life := 1; life <= 3; life++ {
		r.recreate(t, pod)
		if count := r.node.RestartCount("u1"); count != life {
			t.Errorf("restart count %d, want %d", count, life)
		}
		if n := len(r.node.Released()); n != life {
			t.Errorf("its resources were released %d times, want %d", n, life)
		}
	}
	r.remove("u1", podworkers.End{})
	eventually.That(t, "nothing is left", func() bool { return len(r.node.UIDs()) == 0 })
}

func TestALifeThatBeginsAfterTheEndOfTheOneBeforeCountsFromZero(t *testing.T) {
	r := start(t)
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	for range 2 {
		r.want(pod)
		eventually.That(t, "web runs", r.running("web"))
		if count := r.node.RestartCount("u1"); count != 0 {
			t.Errorf("restart count %d, want 0", count)
		}
		r.remove("u1", podworkers.End{})
		eventually.That(t, "nothing is left", func() bool { return len(r.node.UIDs()) == 0 && len(r.pool.List()) == 0 })
	}
}

// TestALifeOfAPodThatNeverRestartsIsRun: with the containers of the life before it would not be.
func TestALifeOfAPodThatNeverRestartsIsRun(t *testing.T) {
	r := start(t)
	pod := fakenode.Pod("u1", "job", v1.RestartPolicyNever)
	r.want(pod)
	eventually.That(t, "job runs", r.running("job"))
	r.recreate(t, pod)
	if count := r.node.RestartCount("u1"); count != 0 {
		t.Errorf("restart count %d, want 0", count)
	}
}

// TestALifeThatIsRemovedBeforeItBeginsLeavesNothing: the containers of the life before were left for it.
func TestALifeThatIsRemovedBeforeItBeginsLeavesNothing(t *testing.T) {
	t.Run("while the resources of the one before are released", func(t *testing.T) {
		r := start(t)
		pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
		stopping, mayStop := make(chan struct{}), make(chan struct{})
		var releasing atomic.Bool
		mayRelease := make(chan struct{})
		r.node.SetScript(fakenode.Script{
			Kill: func(context.Context, *v1.Pod, int64) error {
				close(stopping)
				<-mayStop
				return nil
			},
			Release: func(*v1.Pod) error {
				releasing.Store(true)
				<-mayRelease
				return nil
			},
		})
		r.want(pod)
		eventually.That(t, "web runs", r.running("web"))
		r.remove("u1", podworkers.End{})
		<-stopping
		r.want(pod)
		close(mayStop)
		eventually.That(t, "the resources of the first life are released", releasing.Load)
		r.remove("u1", podworkers.End{})
		close(mayRelease)
		eventually.That(t, "nothing is left", func() bool { return len(r.node.UIDs()) == 0 && len(r.pool.List()) == 0 })
	})
	t.Run("while another pod has its name", func(t *testing.T) {
		r := start(t)
		pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
		r.want(pod)
		eventually.That(t, "web runs", r.running("web"))
		other := fakenode.Pod("u2", "web", v1.RestartPolicyAlways)
		r.store.SetPod(other, "file", "")
		r.pool.Want(other, podworkers.Cause{}, &podworkers.End{}) // an evicted pod
		stopping, mayStop := make(chan struct{}), make(chan struct{})
		r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
			close(stopping)
			<-mayStop
			return nil
		}})
		r.remove("u1", podworkers.End{})
		<-stopping
		r.want(pod)
		close(mayStop)
		eventually.That(t, "its next life waits for the other pod", func() bool {
			return slices.ContainsFunc(r.pool.List(), func(w *enginev1.Worker) bool {
				return w.GetPodUid() == "u1" && w.GetBehindPodUid() == "u2"
			})
		})
		if uids := r.node.UIDs(); !slices.Equal(uids, []types.UID{"u1"}) {
			t.Fatalf("the runtime has %v, want u1 with its ended container", uids)
		}
		r.remove("u1", podworkers.End{})
		eventually.That(t, "nothing of it is left", func() bool { return len(r.node.UIDs()) == 0 })
	})
}
