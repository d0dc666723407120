package runtimeevents_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/pleg/internal/runtimeevents"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// heard records the calls of a relister.
type recorder struct {
	unreliable chan struct{}

	mu    sync.Mutex
	lines []string
	alive int
}

func (h *recorder) add(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, what)
}

func (h *recorder) Hint(uid string, at time.Time) {
	h.add("pod " + uid + " " + at.UTC().Format(time.TimeOnly))
}
func (h *recorder) HintAny(id string, at time.Time) {
	h.add("id " + id + " " + at.UTC().Format(time.TimeOnly))
}
func (h *recorder) HintCreated(uid string, at time.Time) {
	h.add("made for " + uid + " " + at.UTC().Format(time.TimeOnly))
}
func (h *recorder) HintRemoved(uid, id string, at time.Time) {
	h.add("removed " + id + " of " + uid + " " + at.UTC().Format(time.TimeOnly))
}
func (h *recorder) Heard(time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.alive++
}
func (h *recorder) Unreliable() <-chan struct{} { return h.unreliable }
func (h *recorder) SetEvented(evented bool) {
	h.add(map[bool]string{true: "evented", false: "generic"}[evented])
}

func (h *recorder) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.lines)
}

// streams is the runtime's side: each stream waits for the test.
type streams struct {
	begun chan *eventStream
}

type eventStream struct {
	opened func()
	handle func(*runtimeapi.ContainerEventResponse)
	end    chan error
}

func (s *streams) events(ctx context.Context, opened func(), handle func(*runtimeapi.ContainerEventResponse)) error {
	one := &eventStream{opened: opened, handle: handle, end: make(chan error)}
	select {
	case s.begun <- one:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-one.end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

type rig struct {
	t        *testing.T
	clock    *clocktesting.FakeClock
	recorder *recorder
	registry *prometheus.Registry
	streams
}

func start(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		t:        t,
		clock:    clocktesting.NewFakeClock(time.Unix(0, 0)),
		recorder: &recorder{unreliable: make(chan struct{}, 1)},
		registry: prometheus.NewRegistry(),
		streams:  streams{begun: make(chan *eventStream)},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- runtimeevents.Run(ctx, runtimeevents.Config{Events: r.events, Relister: r.recorder, Clock: r.clock,
			Logger: slog.New(slog.DiscardHandler), Metrics: runtimeevents.NewMetrics(r.registry)})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// pass waits for a waiter on the clock, then advances it.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	r.eventually("somebody waits for the clock", r.clock.HasWaiters)
	r.clock.Step(d)
}

// ends ends a stream, and waits until that was handled.
func (r *rig) ends(s *eventStream, err error) {
	r.t.Helper()
	ended := func() float64 {
		return metricstest.Value(r.t, r.registry, "kubelet_evented_pleg_connection_error_count")
	}
	before := ended()
	s.end <- err
	r.eventually("the end of the stream is taken", func() bool { return ended() > before })
}

// next advances the clock until the next stream begins, and returns it and the largest possible duration.
func (r *rig) next() (*eventStream, time.Duration) {
	r.t.Helper()
	began := r.clock.Now()
	var s *eventStream
	r.eventually("the next stream", func() bool {
		select {
		case s = <-r.begun:
			return true
		default:
			if r.clock.HasWaiters() {
				r.clock.Step(time.Second)
			}
			return false
		}
	})
	return s, r.clock.Since(began)
}

func (r *rig) eventually(what string, condition func() bool) {
	r.t.Helper()
	eventually.Wait{State: func() string { return fmt.Sprintf("heard %v", r.recorder.all()) }}.That(r.t, what, condition)
}

func (r *rig) hears(want ...string) {
	r.t.Helper()
	r.eventually("hearing "+want[len(want)-1], func() bool { return slices.Equal(r.recorder.all(), want) })
}

func (r *rig) notBegun() {
	r.t.Helper()
	select {
	case <-r.begun:
		r.t.Fatal("a stream was begun too early")
	default:
	}
}

// event returns an event of a container of the pod with a UID; "none" omits the status, "empty" sets an empty one.
func event(uid, containerID string, at int64, kind runtimeapi.ContainerEventType) *runtimeapi.ContainerEventResponse {
	e := &runtimeapi.ContainerEventResponse{
		ContainerId:        containerID,
		CreatedAt:          at * int64(time.Second),
		ContainerEventType: kind,
	}
	switch uid {
	case "none":
	case "empty":
		e.PodSandboxStatus = &runtimeapi.PodSandboxStatus{}
	default:
		e.PodSandboxStatus = &runtimeapi.PodSandboxStatus{Labels: map[string]string{podlabels.PodUID: uid}}
	}
	return e
}

const (
	created = runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT
	started = runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT
	deleted = runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT
)

func TestEventsBecomeHints(t *testing.T) {
	r := start(t)
	s := <-r.begun
	s.opened()
	sandbox := event("a", "s1", 8, started)
	sandbox.PodSandboxStatus.Id = "s1"
	for _, e := range []*runtimeapi.ContainerEventResponse{
		event("a", "c1", 1, started), event("none", "c2", 2, started), event("empty", "c3", 3, created), event("", "foreign", 4, started),
		event("a", "c4", 5, created), event("a", "c1", 6, deleted), event("none", "c2", 7, deleted),
		sandbox,
	} {
		s.handle(e)
	}
	want := []string{
		"evented",
		"pod a 00:00:01",
		"id c2 00:00:02",
		"id c3 00:00:03",
		"made for a 00:00:05",
		"removed c1 of a 00:00:06",
		"removed c2 of  00:00:07",
		"made for a 00:00:08",
	}
	r.hears(want...)
	if r.recorder.alive != 8 {
		t.Errorf("%d of 8 events were a sign of life, want 8", r.recorder.alive)
	}
	r.ends(s, errors.New("broken"))
	r.hears(append(want, "generic")...)
	r.next()
}

func TestASilentStreamIsReliedOnAfterAWhile(t *testing.T) {
	r := start(t)
	s := <-r.begun
	s.opened()
	r.eventually("the stream is being tried", r.clock.HasWaiters)
	r.clock.Step(900 * time.Millisecond)
	if lines := r.recorder.all(); len(lines) != 0 {
		t.Errorf("before a second has passed %v was said", lines)
	}
	r.clock.Step(100 * time.Millisecond)
	r.hears("evented")
}

func TestARuntimeWithoutEventsIsAskedRarely(t *testing.T) {
	r := start(t)
	s := <-r.begun
	r.ends(s, status.Error(codes.Unimplemented, "no"))
	r.eventually("it waits", r.clock.HasWaiters)
	r.clock.Step(4 * time.Minute)
	r.notBegun()
	r.clock.Step(time.Minute)
	<-r.begun
	if lines := r.recorder.all(); len(lines) != 0 {
		t.Errorf("of a runtime without events %v was said", lines)
	}
}

func TestAfterFiveFailedStreamsEventsAreGivenUpForAWhile(t *testing.T) {
	r := start(t)
	s := <-r.begun
	for range 4 {
		r.ends(s, errors.New("broken"))
		s, _ = r.next()
	}
	r.ends(s, errors.New("broken"))
	s, after := r.next()
	if after < 5*time.Minute {
		t.Errorf("after five failures the next stream was tried within %v", after)
	}
	s.opened()
	s.handle(event("a", "c1", 1, started))
	r.hears("evented", "pod a 00:00:01")
}

// TestARuntimeThatClosesTheStreamEachSecondIsGivenUp checks that it is given up after five, instead of alternating with
// relists every second.
func TestARuntimeThatClosesTheStreamEachSecondIsGivenUp(t *testing.T) {
	r := start(t)
	s := <-r.begun
	s.opened()
	r.pass(time.Second)
	r.hears("evented")
	want := []string{"evented", "generic"}
	for range 4 {
		r.ends(s, errors.New("closed"))
		s, _ = r.next()
		s.opened()
		s.handle(event("a", "c1", 1, started))
		r.pass(time.Second)
		want = append(want, "pod a 00:00:01")
	}
	r.ends(s, errors.New("closed"))
	s, after := r.next()
	if after < 5*time.Minute {
		t.Errorf("after five failures the next stream was tried within %v", after)
	}
	r.hears(want...)
	s.opened()
	r.pass(time.Second)
	r.hears(append(want, "evented")...)
}

func TestAStreamThatWasThereForAMinuteDoesNotCountAsFailed(t *testing.T) {
	r := start(t)
	s := <-r.begun
	for range 7 {
		s.opened()
		r.clock.Step(time.Minute)
		s.handle(event("a", "c1", 1, started))
		r.ends(s, errors.New("closed"))
		var after time.Duration
		if s, after = r.next(); after > 4*time.Minute {
			t.Errorf("the next stream was tried after %v", after)
		}
	}
}

func TestAStreamThatMissesAChangeIsReopened(t *testing.T) {
	r := start(t)
	s := <-r.begun
	s.opened()
	s.handle(event("a", "c1", 1, started))
	r.recorder.unreliable <- struct{}{}
	r.hears("evented", "pod a 00:00:01", "generic")
	s, _ = r.next()
	s.opened()
	r.pass(2 * time.Second)
	r.hears("evented", "pod a 00:00:01", "generic", "evented")
}
