package pleg

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

// metric returns the value of one of pleg's metrics.
func (r *rig) metric(name string) float64 {
	r.t.Helper()
	return metricstest.Value(r.t, metricstest.Scrape(r.cfg.MetricsListen), name)
}

// TestUnreliableEventsGiveTheSameResult: events without a status, duplicates, and a wrong order. None makes the stream
// unreliable.
func TestUnreliableEventsGiveTheSameResult(t *testing.T) {
	for name, twists := range map[string][]fakecri.Twist{
		"without status":             {fakecri.WithoutStatus()},
		"each three times":           {fakecri.Repeating(3)},
		"in the wrong order":         {fakecri.Reversing(2)},
		"all of it, and many a time": {fakecri.WithoutStatus(), fakecri.Repeating(50), fakecri.Reversing(100)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := fakecri.New(t)
			r := startPLEG(t, fake.Endpoint())
			r.synced()
			r.mode(evented)
			fake.TwistEvents(twists...)
			w := r.watch()
			// until waits for events in any order, and allows only PodSync besides.
			until := func(want ...string) {
				t.Helper()
				for len(want) > 0 {
					e := w.next()
					got := strings.TrimPrefix(e.GetType().String(), "EVENT_TYPE_CONTAINER_") + " " + e.GetContainerName()
					if i := slices.Index(want, got); i >= 0 {
						want = slices.Delete(want, i, i+1)
					} else if e.GetType() != podSync {
						t.Fatalf("%s is told while %v is due, want e.Type %v", got, want, podSync)
					}
				}
			}
			// Each step makes two events, so that none is delayed by the reordering.
			sandbox, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"a", "b"}})
			until("STARTED a", "STARTED b")
			fake.Exit(ids["a"], 1)
			fake.Exit(ids["b"], 0)
			until("DIED a", "DIED b")
			fake.DropContainer(ids["a"])
			fake.DropContainer(ids["b"])
			until("REMOVED a", "REMOVED b")
			fake.DropSandbox(sandbox)
			for gone := false; !gone; {
				gone = (<-w.deltas).Removed
			}
			if got := r.metric("quartet_pleg_unannounced_changes_total"); got != 0 {
				t.Errorf("%v changes were held against the stream, want 0", got)
			}
			r.mode(evented)
		})
	}
}

// TestAStreamThatDiesSilentlyIsFoundOutByTheNextLook, for any inspection, and a new stream is opened.
func TestAStreamThatDiesSilentlyIsFoundOutByTheNextLook(t *testing.T) {
	t.Parallel()
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	fake.RunPod(fakecri.Pod{UID: "uid-2", Containers: []string{"app"}})
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	r.mode(evented)
	// pleg has had no event of the pod for long.
	eventually.That(r.t, "all is quiet", func() bool { return quiet(fake) })
	w := r.watch()
	fake.MuteEvents(true)
	fake.Exit(ids["app"], 3)
	r.status("uid-1", boottime.Now())
	w.until(died, ids["app"])
	r.mode(generic)
	if got := r.metric("quartet_pleg_unannounced_changes_total"); got != 1 {
		t.Errorf("%v changes were held against the stream, one was not told", got)
	}
	eventually.That(r.t, "a new stream", func() bool {
		return fake.EventSubscribers() == 1 && r.metric("kubelet_evented_pleg_connection_error_count") == 1
	})
	// There is no inspection now, and no event.
	_, more := fake.RunPod(fakecri.Pod{UID: "uid-3", Containers: []string{"app"}})
	w.until(started, more["app"])
	if health, err := r.client.GetHealth(r.ctx(), &lifecyclev1.GetHealthRequest{}); err != nil || !health.GetHealthy() {
		t.Errorf("the health is %v, %v", health, err)
	}
}

// TestARuntimeThatKeepsClosingTheStreamLosesNoEvent, before pleg gives up the stream and after.
func TestARuntimeThatKeepsClosingTheStreamLosesNoEvent(t *testing.T) {
	t.Parallel()
	fake := fakecri.New(t)
	fake.EndEventStreamsAfter(200*time.Millisecond, status.Error(codes.Unavailable, "scripted"))
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	w := r.watch()
	failed := func() float64 { return r.metric("kubelet_evented_pleg_connection_error_count") }
	for i, end := 0, time.Now().Add(patience); time.Now().Before(end) && failed() < 5; i++ {
		_, ids := fake.RunPod(fakecri.Pod{UID: fmt.Sprint("uid-", i), Containers: []string{"app"}})
		if e := w.until(started, ids["app"]); e.GetPodUid() != fmt.Sprint("uid-", i) {
			t.Errorf("until() = %v, want PodUid %v", e, fmt.Sprint("uid-", i))
		}
		fake.Exit(ids["app"], 1)
		w.until(died, ids["app"])
	}
	r.mode(generic)
	if got := failed(); got != 5 {
		t.Errorf("%v streams failed", got)
	}
	if got := r.metric("quartet_pleg_unannounced_changes_total"); got != 0 {
		t.Errorf("%v changes are said not to have been told", got)
	}
	fake.EndEventStreamsAfter(0, nil)
	_, ids := fake.RunPod(fakecri.Pod{UID: "later", Containers: []string{"app"}})
	w.until(started, ids["app"])
	if got := fake.EventSubscribers(); got != 0 {
		t.Errorf("%d streams are open right after five failed", got)
	}
}

// TestTheStartOfAPodCostsFewCalls: one inspection for each container that starts.
func TestTheStartOfAPodCostsFewCalls(t *testing.T) {
	t.Parallel()
	fake := fakecri.New(t)
	fake.AddImage(harness.HelloImage, 1)
	// The runtime is slow, so that each inspection has ended before the next event.
	for _, method := range []string{"CreateContainer", "StartContainer"} {
		fake.Delay(method, "", 100*time.Millisecond)
	}
	h := newHand(t, fake.Endpoint())
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	r.mode(evented)
	w := r.watch()
	best := 1000
	for i := range 3 { // the best of three: a tick may come between a container's creation and its start
		fake.ResetCalls()
		sandbox, config := h.sandbox(fmt.Sprint("uid-", i))
		last := ""
		for _, name := range []string{"a", "b", "c"} {
			last = h.container(sandbox, config, name)
			h.start(last)
		}
		w.until(started, last)
		eventually.That(r.t, "all is quiet", func() bool { return quiet(fake) })
		calls := 0
		for _, method := range []string{"ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus"} {
			calls += fake.Count(method, "")
		}
		best = min(best, calls)
	}
	t.Logf("the start of a pod of three containers cost %d calls", best)
	// Three inspections of two lists each, the sandbox once, and 1 + 2 + 3 containers.
	if best > 3*2+1+6 {
		t.Errorf("the start of a pod of three containers cost %d calls", best)
	}
}

// TestABacklogIsFoldedByPod: the stream of a runtime that had no subscriber for a while begins with thousands of
// events.
func TestABacklogIsFoldedByPod(t *testing.T) {
	t.Parallel()
	fake := fakecri.New(t)
	const pods, events = 50, 5000
	for i := range pods {
		fake.RunPod(fakecri.Pod{UID: fmt.Sprint("uid-", i), Containers: []string{"app"}})
	}
	fake.FillBacklog(events, 0) // recent events: each may be a change
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	r.mode(evented)
	eventually.That(
		r.t,
		"the backlog was taken",
		func() bool { return r.metric("quartet_pleg_runtime_events_total") >= events },
	)
	eventually.That(r.t, "all is quiet", func() bool { return quiet(fake) })
	// Each pod is inspected again while its events come, so the number depends on the speed of the machine.
	if got := fake.Count("ContainerStatus", ""); got > events/10 {
		t.Errorf("%d events of %d pods made %d inspections", events, pods, got)
	}
	if got := r.metric("quartet_pleg_unannounced_changes_total"); got != 0 {
		t.Errorf("%v changes were held against the stream, want 0", got)
	}
}

// TestAFailedContainerStartIsReportedSoon: runtimes send no event for that, which does not make the stream
// unreliable.
func TestAFailedContainerStartIsReportedSoon(t *testing.T) {
	t.Parallel()
	fake := fakecri.New(t)
	fake.AddImage(harness.HelloImage, 1)
	h := newHand(t, fake.Endpoint())
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	r.mode(evented)
	w := r.watch()
	sandbox, config := h.sandbox("uid-1")
	id := h.container(sandbox, config, "app")
	eventually.That(r.t, "it was looked at before", func() bool { return fake.Count("ContainerStatus", id) > 0 })
	fake.MuteEvents(true)
	fake.Exit(id, 128)
	failed := time.Now()
	if e := w.until(died, id); e.GetExitCode() != 128 {
		t.Errorf("it is told as %v, want ExitCode 128", e)
	}
	if took := time.Since(failed); took > 15*time.Second {
		t.Errorf("it was told after %v", took)
	}
	eventually.That(r.t, "all is quiet", func() bool { return quiet(fake) })
	r.mode(evented)
}
