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
