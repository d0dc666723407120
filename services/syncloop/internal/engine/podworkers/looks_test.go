package podworkers_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// restarted is a pool that has just started on a node on which pods run.
type restarted struct {
	*rig
	// release ends the start of the pod "new", which does not run.
	release context.CancelFunc
	begun   time.Time

	mu sync.Mutex
	// at has when each pod was synced first, and now the pods that are being synced at the moment.
	at   map[types.UID]time.Duration
	now  []types.UID
	most int
}

// lookTime is how long the sync of a pod that runs takes.
const lookTime = 10 * time.Millisecond

// afterRestart makes the pool in a bubble of package synctest, and wants the pod "new" and then the others.
func afterRestart(t *testing.T, running ...string) *restarted {
	t.Helper()
	node := fakenode.New()
	ctx, release := context.WithCancel(t.Context())
	r := &restarted{
		rig: newRigWith(node, time.Hour), release: release, begun: time.Now(), at: map[types.UID]time.Duration{},
	}
	t.Cleanup(r.stop)
	t.Cleanup(release)
	node.SetScript(fakenode.Script{Sync: func(_ context.Context, pod *v1.Pod) error {
		defer r.enter(pod.UID)()
		if pod.Name == "new" {
			<-ctx.Done()
			return nil
		}
		time.Sleep(lookTime)
		return nil
	}})
	r.want(fakenode.Pod("new", "new", v1.RestartPolicyAlways))
	synctest.Wait() // it is being started
	for _, name := range running {
		r.wantRunning(t, name)
	}
	return r
}

// wantRunning wants a pod that an earlier process has started; its name is its UID. The container of "ended" has ended,
// and that of "sidecar" runs without its sidecar.
func (r *restarted) wantRunning(t *testing.T, name string) {
	t.Helper()
	pod := fakenode.Pod(name, name, v1.RestartPolicyAlways)
	r.node.Run(pod)
	switch name {
	case "ended":
		r.node.Exit(pod.UID, 1)
	case "sidecar":
		pod.Spec.InitContainers = []v1.Container{{Name: "proxy", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
	}
	observed, err := r.node.GetPodStatus(t.Context(), pod.UID, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.store.Observe(pod.UID, observed)
	r.want(pod)
}

func (r *restarted) enter(uid types.UID) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.at[uid]; !known {
		r.at[uid] = time.Since(r.begun)
	}
	r.now = append(r.now, uid)
	r.most = max(r.most, len(r.now))
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now = slices.Delete(r.now, slices.Index(r.now, uid), slices.Index(r.now, uid)+1)
	}
}

// synced returns the pods that have been synced within a time, sorted, and how many were synced at once at most.
func (r *restarted) synced(within time.Duration) (uids []string, most int) {
	time.Sleep(within - time.Since(r.begun))
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.at {
		uids = append(uids, string(uid))
	}
	slices.Sort(uids)
	return uids, r.most
}

func TestPodsThatRunAreLookedAtWhenNoOtherIsStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := afterRestart(t, "a", "b", "c")
		if got, _ := r.synced(900 * time.Millisecond); !slices.Equal(got, []string{"new"}) {
			t.Fatalf("while a pod is started, %q were synced, want it alone", got)
		}
		r.release()
		if got, most := r.synced(990 * time.Millisecond); len(got) != 4 || most != 1 {
			t.Errorf("when it has started, %q were synced, %d at once, want all, one after another", got, most)
		}
	})
}

func TestAStartThatTakesLongDelaysNoLookByMoreThanASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := afterRestart(t, "a", "b", "c")
		if got, _ := r.synced(1050 * time.Millisecond); len(got) != 4 {
			t.Errorf("beside a start that hangs, %q were synced, want all", got)
		}
	})
}

func TestNoPodIsLookedAtWhileOthersAreDispatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := afterRestart(t)
		r.release()
		end := r.pool.Together()
		r.wantRunning(t, "a")
		if got, _ := r.synced(500 * time.Millisecond); !slices.Equal(got, []string{"new"}) {
			t.Errorf("before all are dispatched, %q were synced", got)
		}
		end()
		if got, _ := r.synced(600 * time.Millisecond); !slices.Equal(got, []string{"a", "new"}) {
			t.Errorf("after that, %q were synced, want all", got)
		}
	})
}

// TestALookThatWaitsIsDoneWhenItIsNeeded has a container end, a pod change and a pod be removed while their first looks
// wait. Events that change nothing, and other pods, let them wait.
func TestALookThatWaitsIsDoneWhenItIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := afterRestart(t, "changed", "lost", "probed", "removed", "seen")
		if got, _ := r.synced(500 * time.Millisecond); !slices.Equal(got, []string{"new"}) {
			t.Fatalf("while a pod is started, %q were synced, want it alone", got)
		}
		r.pool.Poke("seen", podworkers.Cause{Kind: podworkers.CauseSeen})
		r.pool.Poke("probed", podworkers.Cause{Kind: podworkers.CauseProbe})
		r.pool.Poke("lost", podworkers.Cause{Kind: podworkers.CauseLost})
		r.want(fakenode.Pod("changed", "changed", v1.RestartPolicyAlways))
		r.remove("removed", podworkers.End{})
		if got, _ := r.synced(600 * time.Millisecond); !slices.Equal(got, []string{"changed", "lost", "new"}) {
			t.Errorf("%q were synced, want those that need it", got)
		}
		if calls := r.node.Calls(); !slices.Contains(calls, "clean removed") {
			t.Errorf("the removed pod is still there, the calls are %q", calls)
		}
	})
}

// TestAPodOfWhichSomethingHasEndedDoesNotWait has a pod whose container runs and whose sidecar has none.
func TestAPodOfWhichSomethingHasEndedDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := afterRestart(t, "ended", "sidecar", "whole")
		got, _ := r.synced(500 * time.Millisecond)
		if !slices.Equal(got, []string{"ended", "new", "sidecar"}) {
			t.Errorf("while a pod is started, %q were synced, want those of which something does not run", got)
		}
	})
}
