package podworkers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
)

// eventRecorder records events as text.
type eventRecorder struct {
	mu    sync.Mutex
	lines []string
}

func (e *eventRecorder) Warning(_ context.Context, pod *v1.Pod, _, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, pod.Name+" "+reason+": "+message)
}

func (e *eventRecorder) Normal(_ context.Context, pod *v1.Pod, _, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, pod.Name+" "+reason+": "+message)
}

func (e *eventRecorder) has(line string) func() bool {
	return func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return slices.Contains(e.lines, line)
	}
}

// unkillable is a runtime whose KillPod succeeds without stopping the pod.
type unkillable struct{ *fakenode.Node }

func (unkillable) KillPod(context.Context, *v1.Pod, *lifecyclev1.PodStatus, int64) error { return nil }

// runtime is a runtime and a pleg in one.
type runtime interface {
	podworkers.Runtime
	podworkers.Observer
}

func startWithEvents(t *testing.T, runtime runtime) (*podworkers.Pool, *eventRecorder) {
	process, end := context.WithCancel(context.Background())
	logger := slog.New(slog.DiscardHandler)
	store := podstore.New(podstore.Config{
		API: statusmanager.None{}, Clock: clock.RealClock{}, Tracer: telemetry.Off(), Logger: logger,
	})
	store.Open()
	events := &eventRecorder{}
	pool := podworkers.NewPool(process, podworkers.Config{
		Runtime: runtime, Observer: runtime, Statuses: store, Endings: gracebook.InMemory(boottime.Now),
		Clock: clock.RealClock{}, BootTime: boottime.Now,
		Tracer: telemetry.Off(), Logger: logger, Resync: time.Minute, Events: events,
	})
	t.Cleanup(func() {
		end()
		pool.Wait()
		store.Close()
	})
	return pool, events
}

func TestFailuresOfAPodAreInItsEvents(t *testing.T) {
	node := fakenode.New()
	pod := fakenode.Pod("u-1", "web", v1.RestartPolicyAlways)
	node.Run(pod)
	ending := podworkers.End{Removed: true}

	pool, events := startWithEvents(t, unkillable{node})
	pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, &ending)
	eventually.That(t, "there is an event that it still runs", events.has("web ExceededGracePeriod: Container runtime did not kill the pod within specified grace period."))

	node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error { return errors.New("no answer") }})
	pool, events = startWithEvents(t, node)
	pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, &ending)
	eventually.That(t, "there is an event that it cannot be stopped", events.has("web FailedKillPod: error killing pod: no answer"))

	node.FailInspection(pod.UID, "no answer")
	pool, events = startWithEvents(t, node)
	pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, nil)
	eventually.That(t, "there is an event that it cannot be inspected", events.has("web FailedSync: error determining status: pleg cannot inspect the pod: no answer"))
}

// held is a runtime that cannot give back what a pod holds.
type held struct {
	*fakenode.Node
	err error
}

func (h held) ReleasePod(context.Context, *v1.Pod) error { return h.err }

func (h held) CleanUpPod(context.Context, *v1.Pod, *lifecyclev1.PodStatus) error { return h.err }

// TestAPodWhoseClaimsCannotBeGivenBackSaysSo checks the event of a pod that its source still names, and of one that is
// deleted.
func TestAPodWhoseClaimsCannotBeGivenBackSaysSo(t *testing.T) {
	pod := fakenode.Pod("u-1", "web", v1.RestartPolicyAlways)
	gone := fmt.Errorf("pod shop/web: release its resource claims: %w",
		&executor.ClaimsError{Err: errors.New("unprepare dynamic resources: DRA driver gpu is not registered")})
	for _, removed := range []bool{false, true} {
		pool, events := startWithEvents(t, held{fakenode.New(), gone})
		pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, &podworkers.End{Removed: removed})
		eventually.That(t, fmt.Sprintf("there is an event, removed %t", removed),
			events.has("web FailedKillPod: error killing pod: unprepare dynamic resources: DRA driver gpu is not registered"))
	}
}

func TestAnErrorThatNamesAnotherSandboxEachTimeIsOneWarning(t *testing.T) {
	node := fakenode.New()
	var tries atomic.Int64
	node.SetScript(fakenode.Script{Sync: func(context.Context, *v1.Pod) error {
		return fmt.Errorf("network for sandbox %064x", tries.Add(1))
	}})
	r := newRig(node)
	defer r.stop()
	r.want(fakenode.Pod("u-1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "it is tried again and again", func() bool { return tries.Load() > 5 })
	if got := r.warnings.Load(); got != 1 {
		t.Errorf("%d warnings in the log, want 1", got)
	}
}
