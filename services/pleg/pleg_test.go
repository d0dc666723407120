package pleg

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

const (
	evented = lifecyclev1.RelistMode_RELIST_MODE_EVENTED
	generic = lifecyclev1.RelistMode_RELIST_MODE_GENERIC
	started = lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED
	died    = lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED
	removed = lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED
	podSync = lifecyclev1.EventType_EVENT_TYPE_POD_SYNC
)

// The life of a pod has the same events whether the runtime sends events or not.
func TestTheLifeOfAPodGivesItsEventsInOrder(t *testing.T) {
	for _, mode := range []lifecyclev1.RelistMode{evented, generic} {
		t.Run(mode.String(), func(t *testing.T) {
			fake := fakecri.New(t)
			fake.SetEventsSupported(mode == evented)
			r := startPLEG(t, fake.Endpoint())
			r.synced()
			r.mode(mode)
			w := r.watch()

			sandbox, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Name: "web", Containers: []string{"app"}})
			if e := w.until(podSync, "uid-1"); e.GetStatus().GetName() != "web" || len(e.GetStatus().GetIps()) != 1 {
				t.Errorf("a sandbox came up and the event has the status %v", e.GetStatus())
			}
			if e := w.until(
				started,
				ids["app"],
			); e.GetContainerName() != "app" ||
				e.GetOccurredAt().AsTime().After(e.GetObservedAt().AsTime()) {
				t.Errorf("a start is told as %v", e)
			}
			fake.ExitWithReason(ids["app"], 137, "OOMKilled")
			e := w.until(died, ids["app"])
			if e.GetExitCode() != 137 || e.GetReason() != "OOMKilled" {
				t.Errorf("a death by 137, OOMKilled is told as %v, want ExitCode 137 and Reason %q", e, "OOMKilled")
			}
			ip := e.GetStatus().GetIps()[0]
			second := fake.AddContainer(sandbox, "app", 1)
			w.until(started, second)
			fake.DropContainer(ids["app"])
			w.until(removed, ids["app"])
			fake.KillSandbox(sandbox)
			w.until(died, second)
			eventually.That(r.t, "the address outlives the network", func() bool {
				s := r.status("uid-1", boottime.Now())
				return len(s.GetSandboxes()) == 1 &&
					s.GetSandboxes()[0].GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY &&
					len(s.GetSandboxes()[0].GetIps()) == 0 &&
					len(s.GetIps()) == 1 &&
					s.GetIps()[0] == ip
			})
			fake.DropSandbox(sandbox)
			w.until(removed, second)
			for {
				if m := <-w.deltas; m.Removed {
					break
				}
			}
			if s := r.status("uid-1", 0); len(s.GetSandboxes())+len(s.GetContainers()) != 0 {
				t.Errorf("a pod that is gone still has the status %v", s)
			}
		})
	}
}

func TestAStartIsPublishedWithinMillisecondsOfTheRuntimesEvent(t *testing.T) {
	fake := fakecri.New(t)
	r := startPLEG(t, fake.Endpoint())
	r.mode(evented)
	w := r.watch()
	best := time.Hour
	for i := range 20 {
		begin := time.Now()
		_, ids := fake.RunPod(fakecri.Pod{UID: fmt.Sprint("uid-", i), Containers: []string{"app"}})
		w.until(started, ids["app"])
		if i > 0 {
			best = min(best, time.Since(begin))
		}
	}
	// The best of many, so that a busy machine does not fail the test. If events waited for a tick, each except the first
	// would take the whole second between two ticks.
	if best > 500*time.Millisecond {
		t.Errorf("the quickest of 19 starts was told after %v", best)
	}
}

func TestAHungInspectionDelaysItsPodAlone(t *testing.T) {
	for _, mode := range []lifecyclev1.RelistMode{evented, generic} {
		t.Run(mode.String(), func(t *testing.T) {
			fake := fakecri.New(t)
			fake.SetEventsSupported(mode == evented)
			hung := map[string]*fakecri.Gate{}
			var victims []string
			// More pods hang than inspections run in parallel.
			for i := range 10 {
				sandbox, ids := fake.RunPod(fakecri.Pod{UID: fmt.Sprint("hung-", i), Containers: []string{"app"}})
				victims = append(victims, ids["app"])
				hung[sandbox] = nil
			}
			r := startPLEG(t, fake.Endpoint())
			r.synced()
			r.mode(mode)
			w := r.watch()
			for _, id := range victims {
				hung[id] = fake.Hang("ContainerStatus", id)
				defer hung[id].Open()
				fake.Kill(id)
			}
			eventually.That(r.t, "every one of them hangs", func() bool {
				for _, id := range victims {
					if hung[id].Waiting() == 0 {
						return false
					}
				}
				return true
			})
			_, ids := fake.RunPod(fakecri.Pod{UID: "well", Containers: []string{"app"}})
			if e := w.until(started, ids["app"]); e.GetPodUid() != "well" {
				t.Errorf("until() = %v, want PodUid %q", e, "well")
			}
			r.synced() // by another relist
			if health, err := r.client.GetHealth(r.ctx(), &lifecyclev1.GetHealthRequest{}); err != nil || !health.GetHealthy() {
				t.Errorf("while ten pods hang the health is %v, %v", health, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if _, err := r.client.GetPodStatus(
				ctx,
				&lifecyclev1.GetPodStatusRequest{Uid: "hung-3", NewerThanBoottimeNs: int64(boottime.Now())},
			); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("the fresh status of a pod whose inspection hangs: got %v, want DeadlineExceeded", err)
			}
			hung[victims[3]].Open()
			if e := w.until(died, victims[3]); e.GetExitCode() != 137 {
				t.Errorf("the death that was told late is %v, want ExitCode 137", e)
			}
		})
	}
}

func TestAFailedInspectionIsTriedAgainUntilItWorks(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	r.mode(evented)
	w := r.watch()
	undo := fake.Fail("ContainerStatus", ids["app"], -1, status.Error(codes.Internal, "scripted"))
	fake.Exit(ids["app"], 7)
	eventually.That(r.t, "the status says why it is old", func() bool {
		s := r.status("uid-1", 0)
		return strings.Contains(s.GetInspectError(), "scripted") &&
			s.GetContainers()[0].GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
	})
	_, err := r.client.GetPodStatus(
		r.ctx(),
		&lifecyclev1.GetPodStatusRequest{Uid: "uid-1", NewerThanBoottimeNs: int64(boottime.Now())},
	)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "scripted") {
		t.Errorf("a fresh status while the inspection fails: got %v, want Unavailable with the reason", err)
	}
	undo()
	if e := w.until(died, ids["app"]); e.GetExitCode() != 7 || e.GetStatus().GetInspectError() != "" {
		t.Errorf("when the inspection works again the death is told as %v", e)
	}
}

// A pod that is not inspected when the first relist ends must not look removed, and an unknown exit code must not look
// like success.
func TestAPodThatCannotBeInspectedIsThereFromTheFirstRelistOn(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app", "init"}})
	fake.Exit(ids["init"], 1)
	undo := fake.Fail("ContainerStatus", ids["init"], -1, status.Error(codes.Internal, "scripted"))
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	w := r.watch()
	got := w.snapshot["uid-1"].GetStatus()
	if got.GetInspectError() == "" || len(got.GetContainers()) != 2 {
		t.Fatalf("the snapshot has %v", got)
	}
	for _, c := range got.GetContainers() {
		if c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_EXITED {
			t.Errorf("container %s counts as ended with code %d that was not read", c.GetName(), c.GetExitCode())
		}
	}
	undo()
	if e := w.until(died, ids["init"]); e.GetExitCode() != 1 {
		t.Errorf("the death is told as %v, want ExitCode 1", e)
	}
}

func TestStatusIsAsFreshAsAskedFor(t *testing.T) {
	fake := fakecri.New(t)
	fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	fake.SetEventsSupported(true)
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	r.mode(evented)
	eventually.That(r.t, "all is quiet", func() bool { return quiet(fake) })
	fake.ResetCalls()

	old := r.status("uid-1", 0)
	if r.status("uid-1", time.Duration(old.GetObservedBoottimeNs())-1); fake.Count("ContainerStatus", "") != 0 {
		t.Error("a status that is new enough was asked of the runtime again")
	}
	// The runtime changes without an event: only an inspection can find it.
	fake.MuteEvents(true)
	container := fake.Containers()[0].ID
	fake.Exit(container, 5)
	now := boottime.Now()
	if got := r.status(
		"uid-1",
		0,
	); got.GetContainers()[0].GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING {
		t.Error("newer_than 0 did not take what was on record")
	}
	w := r.watch()
	fresh := r.status("uid-1", now)
	if fresh.GetObservedBoottimeNs() <= int64(now) || fresh.GetContainers()[0].GetExitCode() != 5 {
		t.Errorf("asked for a status newer than %d, got %v", now, fresh)
	}
	if e := w.until(died, container); e.GetExitCode() != 5 {
		t.Errorf("what the inspection found is told as %v, want ExitCode 5", e)
	}
	if got := r.status(
		"never-heard-of",
		boottime.Now(),
	); len(got.GetSandboxes())+len(got.GetContainers()) != 0 ||
		got.GetUid() != "never-heard-of" {
		t.Errorf("a pod that the runtime does not have: got %v, want an empty status", got)
	}
	_, err := r.client.GetPodStatus(
		r.ctx(),
		&lifecyclev1.GetPodStatusRequest{Uid: "uid-1", NewerThanBoottimeNs: int64(boottime.Now() + time.Hour)},
	)
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("newer than a time to come: got %v, want InvalidArgument", err)
	}
}

func TestCallersDuringAnInspectionShareTheNextOne(t *testing.T) {
	fake := fakecri.New(t)
	sandbox, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	r.mode(evented)
	eventually.That(r.t, "all is quiet", func() bool { return quiet(fake) })
	fake.ResetCalls()
	gate := fake.Hang("ContainerStatus", ids["app"])
	defer gate.Open()
	var callers sync.WaitGroup
	ask := func() {
		ctx := r.ctx()
		callers.Go(func() {
			begin := boottime.Now()
			resp, err := r.client.GetPodStatus(
				ctx,
				&lifecyclev1.GetPodStatusRequest{Uid: "uid-1", NewerThanBoottimeNs: int64(begin)},
			)
			if err != nil {
				t.Error(err)
			} else if resp.GetStatus().GetObservedBoottimeNs() <= int64(begin) {
				t.Errorf("asked at %d, got an observation of %d", begin, resp.GetStatus().GetObservedBoottimeNs())
			}
		})
	}
	ask()
	eventually.That(r.t, "an inspection hangs", func() bool { return gate.Waiting() == 1 })
	for range 50 {
		ask()
	}
	for range 5000 {
		fake.SendEvent(sandbox, sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, 0)
	}
	// Events come in order: when this pod is known, all hints were handled.
	fake.RunPod(fakecri.Pod{UID: "uid-2"})
	eventually.That(r.t, "the hints have been taken", func() bool { return len(r.status("uid-2", 0).GetSandboxes()) == 1 })
	gate.Open()
	callers.Wait()
	eventually.That(r.t, "all is quiet", func() bool { return quiet(fake) })
	// The hanging inspection and the one after it, and those for requests that came after its begin.
	if got := fake.Count("ContainerStatus", ids["app"]); got > 10 {
		t.Errorf("51 questions and 5000 hints of one pod made %d inspections", got)
	}
}

func TestABacklogOfStaleEventsCostsFewInspections(t *testing.T) {
	fake := fakecri.New(t)
	sandbox, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	for range 3000 {
		fake.SendEvent(ids["app"], sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, time.Minute)
		fake.SendEvent("long-gone", "long-gone", runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, time.Minute)
	}
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	r.mode(evented)
	eventually.That(r.t, "all is quiet", func() bool { return quiet(fake) })
	if got := fake.Count("ContainerStatus", ""); got > 20 {
		t.Errorf("a backlog of 6000 events made %d inspections", got)
	}
	if got := fake.Count("ListContainers", ""); got > 40 {
		t.Errorf("a backlog of 6000 events made %d lists", got)
	}
}

// quiet reports whether for a while no call came in except those for the runtime's status.
func quiet(fake *fakecri.Server) bool {
	calls := fake.Calls()
	for i := len(calls) - 1; i >= 0; i-- {
		if calls[i].Method != "Status" && calls[i].Method != "Version" {
			return time.Since(calls[i].At) > 1500*time.Millisecond
		}
	}
	return true
}

func TestWhenTheEventStreamIsLostNothingElseIs(t *testing.T) {
	fake := fakecri.New(t)
	r := startPLEG(t, fake.Endpoint())
	r.mode(evented)
	w := r.watch()
	fake.SetEventsSupported(false)
	r.mode(generic)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	w.until(started, ids["app"])
	fake.Kill(ids["app"])
	w.until(died, ids["app"])
}

func TestContainersThatAreNotOursAreNotSeen(t *testing.T) {
	fake := fakecri.New(t)
	fake.RunPod(fakecri.Pod{UID: "", Name: "foreign", Containers: []string{"app"}})
	fake.RunPod(fakecri.Pod{UID: "uid-1"})
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	resp, err := r.client.ListPodStatuses(r.ctx(), &lifecyclev1.ListPodStatusesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.GetStatuses()) != 1 || resp.GetStatuses()[0].GetUid() != "uid-1" {
		t.Errorf("GetStatuses() = %v, want exactly one and resp.Statuses[0].Uid %q", resp.GetStatuses(), "uid-1")
	}
}

// Across restarts of pleg and of the stream a follower gets every change, and ends with the runtime's state.
func TestAFollowerLosesNothingWhenPLEGRestarts(t *testing.T) {
	fake := fakecri.New(t)
	a, _ := fake.RunPod(fakecri.Pod{UID: "a", Containers: []string{"app"}})
	_, ids := fake.RunPod(fakecri.Pod{UID: "b", Containers: []string{"app"}})
	r := startPLEG(t, fake.Endpoint())
	r.synced()

	var mu sync.Mutex
	held := map[string]*lifecyclev1.PodStatus{}
	removals := 0
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		if err := stream.Follow(ctx, stream.FollowConfig[*lifecyclev1.Event]{
			Source: r.source(), Name: "events",
			Handle: func(c stream.Change[*lifecyclev1.Event]) {
				mu.Lock()
				defer mu.Unlock()
				if c.Op == stream.OpRemove {
					delete(held, c.Key)
					removals++
				} else {
					held[c.Key] = c.New.GetStatus()
				}
			},
		}); ctx.Err() == nil {
			t.Error(err)
		}
	}()
	defer func() { cancel(); <-followed }()
	has := func(condition func() bool) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return condition()
		}
	}
	eventually.That(r.t, "both pods are followed", has(func() bool { return len(held) == 2 }))
	r.stop()
	fake.DropSandbox(a)
	fake.Exit(ids["app"], 9)
	fake.RunPod(fakecri.Pod{UID: "c", Containers: []string{"app"}})
	r.run()
	eventually.That(r.t, "the follower has what the runtime has", has(func() bool {
		return held["a"] == nil && held["c"] != nil && held["b"].GetContainers()[0].GetExitCode() == 9
	}))
	mu.Lock()
	defer mu.Unlock()
	if removals != 1 {
		t.Errorf("%d pods were told to be gone, one is", removals)
	}
}

func TestTwoOnOneStateDirectoryIsAnErrorThatNamesTheHolder(t *testing.T) {
	fake := fakecri.New(t)
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	_, err := statedir.Lock(r.cfg.StateDir, string(nodeconfig.PLEG))
	if err == nil || !strings.Contains(err.Error(), "pleg") {
		t.Errorf("got %v, want an error that names the holder", err)
	}
}
