package fakecri_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

// listen subscribes to the events of a fake, and returns them and the error of the stream's end.
func listen(
	ctx context.Context, client *cri.Client,
) (events chan *runtimeapi.ContainerEventResponse, ended chan error) {
	events, ended = make(chan *runtimeapi.ContainerEventResponse, 20000), make(chan error, 1)
	go func() {
		ended <- client.Events(ctx, func() {}, func(e *runtimeapi.ContainerEventResponse) { events <- e })
	}()
	return events, ended
}

func TestTimesAreThoseOfTheTestsClock(t *testing.T) {
	begin := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	clock := clocktesting.NewFakeClock(begin)
	fake := fakecri.New(t, fakecri.WithClock(clock))
	ctx, client, runtime := connect(t, fake)
	fake.IgnoreTerm("app")
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	clock.Step(time.Hour)
	stopped := make(chan error, 1)
	go func() { stopped <- runtime.StopContainer(ctx, ids["app"], 30) }()
	eventually.That(t, "a call waits for the grace period", clock.HasWaiters)
	clock.Step(30 * time.Second)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	resp, err := runtime.ContainerStatus(ctx, ids["app"], false)
	if err != nil {
		t.Fatal(err)
	}
	at := func(nanos int64) time.Duration { return time.Unix(0, nanos).Sub(begin).Round(time.Second) }
	if st := resp.GetStatus(); at(st.GetCreatedAt()) != 0 || at(st.GetStartedAt()) != 0 ||
		at(st.GetFinishedAt()) != time.Hour+30*time.Second {
		t.Errorf("created %v, started %v, ended %v after the beginning", at(st.GetCreatedAt()), at(st.GetStartedAt()), at(st.GetFinishedAt()))
	}
	events, _ := listen(ctx, client)
	for e := range events {
		if e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			if at(e.GetCreatedAt()) != time.Hour+30*time.Second {
				t.Errorf("the exit has the time %v after the begin", at(e.GetCreatedAt()))
			}
			break
		}
	}
}

func TestAFaultCanBeOfAPod(t *testing.T) {
	fake := fakecri.New(t)
	ctx, _, runtime := connect(t, fake)
	sandbox, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	_, others := fake.RunPod(fakecri.Pod{UID: "uid-2", Containers: []string{"app"}})
	undo := fake.Fail("ContainerStatus", "uid-1", -1, status.Error(codes.Internal, "scripted"))
	if _, err := runtime.ContainerStatus(ctx, ids["app"], false); status.Code(err) != codes.Internal {
		t.Errorf("of the pod: %v, want Code %v", err, codes.Internal)
	}
	if _, err := runtime.ContainerStatus(ctx, others["app"], false); err != nil {
		t.Errorf("of another pod: %v", err)
	}
	undo()
	gate := fake.Hang("PodSandboxStatus", "uid-1")
	hung := make(chan error, 1)
	go func() {
		_, err := runtime.PodSandboxStatus(ctx, sandbox, false)
		hung <- err
	}()
	eventually.That(t, "it hangs", func() bool { return gate.Waiting() == 1 })
	gate.Open()
	if err := <-hung; err != nil {
		t.Error(err)
	}
	if got := fake.Count("ContainerStatus", "uid-1"); got != 1 {
		t.Errorf("%d calls of the pod are counted, want 1", got)
	}
}

// The order of creation holds beyond the number of digits with which ids begin.
func TestItHoldsFiveHundredPodsAndThousandsOfContainers(t *testing.T) {
	fake := fakecri.New(t)
	ctx, _, runtime := connect(t, fake)
	names := make([]string, 20)
	for i := range names {
		names[i] = fmt.Sprint("c", i)
	}
	last := ""
	for i := range 500 {
		_, ids := fake.RunPod(fakecri.Pod{UID: fmt.Sprint("uid-", i), Containers: names})
		last = ids["c19"]
	}
	containers, err := runtime.ListContainers(ctx, nil)
	if err != nil || len(containers) != 10000 || containers[len(containers)-1].GetId() != last {
		t.Fatalf("%d containers are listed, %v, want 10000 and containers[len(containers)-1].Id %v",
			len(containers), err, last)
	}
	sandboxes, err := runtime.ListPodSandbox(ctx, nil)
	if err != nil || len(sandboxes) != 500 {
		t.Errorf("%d sandboxes are listed, %v, want 500", len(sandboxes), err)
	}
	if !slices.IsSortedFunc(containers, func(a, b *runtimeapi.Container) int {
		return int(a.GetCreatedAt() - b.GetCreatedAt())
	}) {
		t.Error("the containers are not listed in the order in which they were made")
	}
}

func TestEventsCanBeTwisted(t *testing.T) {
	fake := fakecri.New(t)
	ctx, client, _ := connect(t, fake)
	sandbox, _ := fake.RunPod(fakecri.Pod{UID: "uid-1"})
	events, _ := listen(ctx, client)
	for range 2 { // of the sandbox
		<-events
	}
	send := func(ids ...string) {
		for _, id := range ids {
			fake.SendEvent(id, sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, 0)
		}
	}
	want := func(what string, ids ...string) {
		t.Helper()
		for i, id := range ids {
			if e := <-events; e.GetContainerId() != id {
				t.Errorf("%s: event %d is of %s, want %s", what, i, e.GetContainerId(), id)
			}
		}
	}
	fake.TwistEvents(fakecri.Losing(2))
	send("a", "b", "c")
	want("each second is lost", "a", "c")
	fake.TwistEvents(fakecri.Repeating(2), fakecri.Reversing(3))
	send("a", "b")
	want("twice, and three at a time turned round", "b", "a", "a")
	fake.TwistEvents()
	send("c")
	want("what was held back comes when it is over", "b", "c")
	fake.TwistEvents(fakecri.WithoutStatus())
	send("a")
	if e := <-events; e.GetContainerId() != "a" || e.GetPodSandboxStatus() != nil || e.GetCreatedAt() == 0 {
		t.Errorf("without a status: %v", e)
	}
}

func TestABacklogComesFirstAndStreamsEndInTime(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	fake := fakecri.New(t, fakecri.WithClock(clock))
	ctx, client, _ := connect(t, fake)
	fake.FillBacklog(10, time.Hour) // of no container
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	fake.FillBacklog(5000, time.Hour)
	over := errors.New("over")
	for _, ending := range []error{nil, status.Error(codes.Unavailable, over.Error())} {
		fake.EndEventStreamsAfter(time.Second, ending)
		events, ended := listen(ctx, client)
		if ending == nil {
			for i := range 4 + 5000 {
				if e := <-events; i >= 4 && (e.GetContainerId() != ids["app"] || clock.Now().Sub(time.Unix(0, e.GetCreatedAt())) < time.Hour-time.Minute) {
					t.Fatalf("event %d of the backlog is %v", i, e)
				}
			}
		}
		eventually.That(t, "the stream is open", clock.HasWaiters)
		clock.Step(time.Second)
		err := <-ended
		if ending == nil && !errors.Is(err, io.EOF) && err != nil || ending != nil && status.Code(err) != codes.Unavailable {
			t.Errorf("a stream that was to end with %v ended with %v", ending, err)
		}
	}
}
