package containergc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pod parses a pod from words, newest first: "s2:ready" and "s1:dead" are sandboxes, "a2@s2:running", "a1@s1:exited"
// and "b0@s1:created" are containers of the names a and b.
func pod(words string) *lifecyclev1.PodStatus {
	status := &lifecyclev1.PodStatus{Uid: "u1", Namespace: "shop", Name: "web"}
	states := map[string]lifecyclev1.ContainerState{
		"running": lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING, "exited": lifecyclev1.ContainerState_CONTAINER_STATE_EXITED,
		"created": lifecyclev1.ContainerState_CONTAINER_STATE_CREATED, "unknown": lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN,
	}
	for _, word := range strings.Fields(words) {
		what, state, _ := strings.Cut(word, ":")
		id, sandbox, container := strings.Cut(what, "@")
		switch {
		case container:
			status.Containers = append(status.Containers, &lifecyclev1.Container{
				Id: id, Name: id[:1], SandboxId: sandbox, State: states[state],
			})
		case state == "ready":
			status.Sandboxes = append(status.Sandboxes, &lifecyclev1.Sandbox{
				Id: id, State: lifecyclev1.SandboxState_SANDBOX_STATE_READY,
			})
		default:
			status.Sandboxes = append(status.Sandboxes, &lifecyclev1.Sandbox{
				Id: id, State: lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY,
			})
		}
	}
	return status
}

func id(item containergc.Item) string {
	if item.Container != nil {
		return item.Container.GetId()
	}
	return item.Sandbox
}

func TestOf(t *testing.T) {
	for _, test := range []struct {
		name, pod string
		keep      int
		want      string
	}{
		{"one that runs", "s1:ready a1@s1:running", 1, ""},
		{"one dead is kept for each name", "s1:ready a3@s1:running a2@s1:exited a1@s1:exited b1@s1:exited", 1, "a1"},
		{"two may be kept", "s1:ready a3@s1:running a2@s1:exited a1@s1:exited a0@s1:exited", 2, "a0"},
		{"none would lose the restart count", "s1:ready a2@s1:exited a1@s1:exited", 0, "a1"},
		{"what is not known to have ended stays", "s1:ready a3@s1:running a2@s1:unknown a1@s1:running", 1, ""},
		{"one that was created and is to be started", "s1:ready a1@s1:created", 1, ""},
		{"one that was created, and then another one was", "s1:ready a2@s1:created a1@s1:created", 1, "a1"},
		{"a sandbox that was replaced", "s2:ready s1:dead a1@s2:running", 1, "s1"},
		{"the same, and it holds the last end", "s2:ready s1:dead a2@s2:running a1@s1:exited", 1, ""},
		{"the same, and the last end is elsewhere", "s2:ready s1:dead a3@s2:running a2@s2:exited a1@s1:exited", 1, "a1 s1"},
		{"the newest sandbox stays, dead as it is", "s2:dead s1:dead", 1, "s1"},
		{"another sandbox that is ready is not garbage", "s2:ready s1:ready", 1, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var ids []string
			for _, item := range containergc.Of(pod(test.pod), test.keep) {
				ids = append(ids, id(item))
			}
			if got := strings.Join(ids, " "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestAllOf checks that nothing that may run is removed of a terminated pod, and that the newest container of a name is
// never removed first.
func TestAllOf(t *testing.T) {
	for _, test := range []struct{ name, pod, want string }{
		{"all that has ended, the oldest first", "s1:dead a2@s1:exited b1@s1:exited a1@s1:exited", "a1 b1 a2"},
		{"one that was never started", "s1:dead a1@s1:created", "a1"},
		{"not what may run", "s2:ready s1:dead a3@s2:running a2@s1:unknown a1@s2:exited", "a1"},
		{"older sandboxes", "s2:dead s1:dead a2@s2:exited a1@s1:exited", "a1 a2 s1"},
		{"the newest sandbox stays", "s1:dead", ""},
		{"nothing", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var ids []string
			for _, item := range containergc.AllOf(pod(test.pod)) {
				ids = append(ids, id(item))
			}
			if got := strings.Join(ids, " "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// rig is a collector that records its removals.
type rig struct {
	t     *testing.T
	clock *clocktesting.FakeClock
	queue *containergc.Queue
	c     *containergc.Collector
	log   bytes.Buffer
	busy  atomic.Bool
	known atomic.Bool
	looks atomic.Int32

	mu      sync.Mutex
	pods    []*lifecyclev1.PodStatus
	removed []string
	events  []string
	// hang holds IDs whose removal hangs until its context ends, fail holds IDs whose removal fails.
	hang, fail map[string]bool
	// disposable holds the UIDs of pods whose ended containers are not needed; with the suffix "!" only if the node is
	// short of disk.
	disposable map[string]bool
	atOnce     int
	most       int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		t: t, queue: containergc.NewQueue(), clock: clocktesting.NewFakeClock(time.Now()),
		hang: map[string]bool{}, fail: map[string]bool{}, disposable: map[string]bool{},
	}
	r.known.Store(true)
	r.c = containergc.New(containergc.Config{
		Queue: r.queue,
		Observed: func() ([]*lifecyclev1.PodStatus, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			defer r.looks.Add(1)
			return slices.Clone(r.pods), r.known.Load()
		},
		Disposable: func(uid types.UID, pressed bool) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.disposable[string(uid)] || (pressed && r.disposable[string(uid)+"!"])
		},
		Remove: r.remove, Busy: r.busy.Load, Clock: r.clock, Logger: slog.New(slog.NewTextHandler(&r.log, nil)), Events: r,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	r.eventually("it waits", r.clock.HasWaiters)
	return r
}

func (r *rig) remove(ctx context.Context, item containergc.Item) error {
	r.mu.Lock()
	r.atOnce++
	r.most = max(r.most, r.atOnce)
	hang, fail := r.hang[id(item)], r.fail[id(item)]
	r.mu.Unlock()
	if hang {
		<-ctx.Done()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.atOnce--
	if fail {
		return errors.New("it is in use")
	}
	r.removed = append(r.removed, id(item))
	return ctx.Err()
}

// NodeWarning implements containergc.Events.
func (r *rig) NodeWarning(_ context.Context, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, reason+": "+message)
}

func (r *rig) logText() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.removed, " ")
}

func (r *rig) eventually(what string, holds func() bool) {
	r.t.Helper()
	eventually.Wait{State: func() string { return fmt.Sprintf("removed: %q", r.logText()) }}.That(r.t, what, holds)
}

func (r *rig) want(removed string) {
	r.t.Helper()
	r.eventually("removed "+removed, func() bool { return r.logText() == removed })
}

func TestWhatIsPutInIsRemovedOneAfterAnother(t *testing.T) {
	r := newRig(t)
	items := containergc.Of(pod("s2:ready s1:dead a3@s2:running a2@s2:exited a1@s1:exited a0@s1:exited"), 1)
	for range 10 {
		r.queue.Put(t.Context(), items)
	}
	r.eventually("all is removed", func() bool { return strings.HasPrefix(r.logText(), "a1 a0 s1") })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most != 1 {
		t.Errorf("%d at once, want 1", r.most)
	}
}

func TestAllPodsAreLookedAtEveryMinute(t *testing.T) {
	r := newRig(t)
	r.pods = []*lifecyclev1.PodStatus{pod("s1:dead a2@s1:exited a1@s1:exited")}
	r.known.Store(false)
	r.clock.Step(time.Minute)
	r.eventually("it has looked", func() bool { return r.looks.Load() == 1 })
	r.known.Store(true)
	if got := r.logText(); got != "" {
		t.Errorf("removed %q before all is known", got)
	}
	r.clock.Step(time.Minute)
	r.want("a1")
}

// TestEndedContainersOfEvictedPods checks that they are removed by each check of all pods, and those of other
// terminated pods only when the node is short of disk.
func TestEndedContainersOfEvictedPods(t *testing.T) {
	r := newRig(t)
	completed := pod("s2:dead b1@s2:exited")
	completed.Uid = "u2"
	running := pod("s3:ready c2@s3:running c1@s3:exited")
	running.Uid = "u3"
	r.pods = []*lifecyclev1.PodStatus{pod("s1:dead a2@s1:exited a1@s1:exited"), completed, running}
	r.disposable["u1"], r.disposable["u2!"] = true, true
	r.clock.Step(time.Minute)
	r.want("a1 a2")
	r.mu.Lock()
	r.pods = r.pods[1:]
	r.mu.Unlock()
	r.c.Look(t.Context())
	r.c.Reclaim(t.Context())
	r.want("a1 a2 b1")
}

func TestARemovalThatHangsDelaysNoOther(t *testing.T) {
	r := newRig(t)
	r.hang["a1"] = true
	r.queue.Put(t.Context(), containergc.Of(pod("s1:ready a3@s1:running a2@s1:exited a1@s1:exited a0@s1:exited b2@s1:exited b1@s1:exited"), 1))
	r.eventually("it hangs", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.atOnce == 1
	})
	// A second Put does not block, and the container is not removed twice.
	r.queue.Put(t.Context(), containergc.Of(pod("s1:ready a2@s1:exited a1@s1:exited"), 1))
	r.eventually("it has had its time", func() bool {
		r.clock.Step(time.Second)
		return r.logText() == "a0 b1"
	})
}

func TestWhatIsStartedGoesFirst(t *testing.T) {
	r := newRig(t)
	r.busy.Store(true)
	r.queue.Put(t.Context(), containergc.Of(pod("s1:ready a2@s1:exited a1@s1:exited"), 1))
	r.eventually("it makes way", func() bool { return r.clock.Waiters() > 1 })
	r.clock.Step(time.Second)
	r.eventually("it makes way again", func() bool { return r.clock.Waiters() > 1 })
	if got := r.logText(); got != "" {
		t.Errorf("removed %q while sandboxes are made, want an empty text", got)
	}
	r.busy.Store(false)
	r.clock.Step(time.Second)
	r.want("a1")
	// A node that always creates a sandbox is cleaned up, too.
	r.busy.Store(true)
	r.queue.Put(t.Context(), containergc.Of(pod("s1:ready b2@s1:exited b1@s1:exited"), 1))
	r.eventually("it is removed in the end", func() bool {
		r.clock.Step(time.Second)
		return r.logText() == "a1 b1"
	})
}

func TestAFailedRemovalIsReportedOnceAndRetried(t *testing.T) {
	r := newRig(t)
	r.fail["a1"] = true
	r.pods = []*lifecyclev1.PodStatus{pod("s1:ready a2@s1:exited a1@s1:exited b2@s1:exited b1@s1:exited")}
	for i := range 3 {
		r.clock.Step(time.Minute)
		r.want(strings.TrimSpace(strings.Repeat("b1 ", i+1)))
	}
	r.mu.Lock()
	r.fail["a1"] = false
	r.mu.Unlock()
	r.clock.Step(time.Minute)
	r.want("b1 b1 b1 a1 b1")
	if got := strings.Count(r.log.String(), "it is in use"); got != 1 {
		t.Errorf("told %d times: %s, want 1", got, r.log.String())
	}
}

// TestRepeatedFailuresAreOneEvent checks that there is one event, whatever the number of items and failures, until all
// removals succeed again.
func TestRepeatedFailuresAreOneEvent(t *testing.T) {
	r := newRig(t)
	fail := func(yes bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.fail["a1"], r.fail["s1"] = yes, yes
	}
	fail(true)
	r.pods = []*lifecyclev1.PodStatus{pod("s2:ready s1:dead a2@s2:exited a1@s2:exited b2@s2:exited b1@s2:exited")}
	rounds := ""
	for range 3 {
		rounds = strings.TrimSpace(rounds + " b1")
		r.clock.Step(time.Minute)
		r.want(rounds)
	}
	fail(false)
	r.clock.Step(time.Minute)
	r.want(rounds + " a1 b1 s1")
	fail(true)
	r.clock.Step(time.Minute)
	const event = "ContainerGCFailed: container a of pod shop/web, which is not needed, cannot be removed: it is in use"
	r.eventually("a second event", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Equal(r.events, []string{event, event})
	})
}

// TestEachPodWithAFailureHasAnEvent checks that a failure of one pod does not hide that of another.
func TestEachPodWithAFailureHasAnEvent(t *testing.T) {
	r := newRig(t)
	r.mu.Lock()
	r.fail["a1"], r.fail["b1"] = true, true
	r.mu.Unlock()
	other := pod("s3:ready b2@s3:exited b1@s3:exited")
	other.Uid, other.Name = "u2", "db"
	r.pods = []*lifecyclev1.PodStatus{pod("s2:ready a2@s2:exited a1@s2:exited"), other}
	r.clock.Step(time.Minute)
	want := []string{
		"ContainerGCFailed: container a of pod shop/web, which is not needed, cannot be removed: it is in use",
		"ContainerGCFailed: container b of pod shop/db, which is not needed, cannot be removed: it is in use",
	}
	r.eventually("an event of each pod", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Equal(slices.Sorted(slices.Values(r.events)), want)
	})
}

func TestAThousandAreNoMoreThanOneAtATime(t *testing.T) {
	r := newRig(t)
	words := "s1:ready"
	for i := range 1000 {
		words += fmt.Sprintf(" a%d@s1:exited", 1000-i)
	}
	r.queue.Put(t.Context(), containergc.Of(pod(words), 1))
	r.eventually("all are removed", func() bool { return strings.Count(r.logText(), " ") == 998 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most != 1 {
		t.Errorf("%d at once, want 1", r.most)
	}
}
