package hints_test

import (
	"context"
	"errors"
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

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/pleg/internal/hints"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// heard notes what a relister is told.
type heard struct {
	mu   sync.Mutex
	said []string
}

func (h *heard) say(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, what)
}

func (h *heard) Hint(uid string, at time.Time) {
	h.say("pod " + uid + " " + at.UTC().Format(time.TimeOnly))
}
func (h *heard) HintAny(id string, at time.Time) {
	h.say("id " + id + " " + at.UTC().Format(time.TimeOnly))
}
func (h *heard) SetEvented(evented bool) {
	h.say(map[bool]string{true: "evented", false: "generic"}[evented])
}

func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.said)
}

// streams is a runtime's side: each stream waits for what the test does with it.
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
	heard    *heard
	registry *prometheus.Registry
	streams
}

func start(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, clock: clocktesting.NewFakeClock(time.Unix(0, 0)), heard: &heard{}, registry: prometheus.NewRegistry(), streams: streams{begun: make(chan *eventStream)}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- hints.Run(ctx, hints.Config{Events: r.events, Relister: r.heard, Clock: r.clock, Logger: slog.New(slog.DiscardHandler), Metrics: hints.NewMetrics(r.registry)})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// pass waits until somebody waits for the clock, then lets time pass.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	r.eventually("somebody waits for the clock", r.clock.HasWaiters)
	r.clock.Step(d)
}

func (r *rig) eventually(what string, condition func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			r.t.Fatalf("waited 20 s for: %s; heard %v", what, r.heard.all())
		}
		<-time.After(time.Millisecond)
	}
}

func (r *rig) hears(want ...string) {
	r.t.Helper()
	r.eventually("hearing "+want[len(want)-1], func() bool { return slices.Equal(r.heard.all(), want) })
}

func (r *rig) notBegun() {
	r.t.Helper()
	select {
	case <-r.begun:
		r.t.Fatal("a stream was begun too early")
	default:
	}
}

func event(uid, containerID string, at int64) *runtimeapi.ContainerEventResponse {
	e := &runtimeapi.ContainerEventResponse{ContainerId: containerID, CreatedAt: at * int64(time.Second)}
	if uid != "none" {
		e.PodSandboxStatus = &runtimeapi.PodSandboxStatus{Labels: map[string]string{podlabels.PodUID: uid}}
	}
	return e
}

func TestEventsBecomeHints(t *testing.T) {
	r := start(t)
	s := <-r.begun
	s.opened()
	s.handle(event("a", "c1", 1))
	s.handle(event("none", "c2", 2))
	s.handle(event("", "foreign", 3))
	r.hears("evented", "pod a 00:00:01", "id c2 00:00:02")
	s.end <- errors.New("broken")
	r.hears("evented", "pod a 00:00:01", "id c2 00:00:02", "generic")
	for again := false; !again; {
		select {
		case <-r.begun:
			again = true
		default:
			r.clock.Step(time.Second)
		}
	}
}

func TestASilentStreamIsReliedOnAfterAWhile(t *testing.T) {
	r := start(t)
	s := <-r.begun
	s.opened()
	r.eventually("the stream is being tried", r.clock.HasWaiters)
	r.clock.Step(900 * time.Millisecond)
	if said := r.heard.all(); len(said) != 0 {
		t.Errorf("before a second has passed %v was said", said)
	}
	r.clock.Step(100 * time.Millisecond)
	r.hears("evented")
}

func TestARuntimeWithoutEventsIsAskedRarely(t *testing.T) {
	r := start(t)
	s := <-r.begun
	s.end <- status.Error(codes.Unimplemented, "no")
	r.eventually("it waits", r.clock.HasWaiters)
	r.clock.Step(4 * time.Minute)
	r.notBegun()
	r.clock.Step(time.Minute)
	<-r.begun
	if said := r.heard.all(); len(said) != 0 {
		t.Errorf("of a runtime without events %v was said", said)
	}
}

func TestAfterFiveFailedStreamsEventsAreGivenUpForAWhile(t *testing.T) {
	r := start(t)
	for i := range 5 {
		s := <-r.begun
		s.end <- errors.New("broken")
		if i < 4 {
			// More than the longest pause between two tries, less than giving up takes.
			r.pass(10 * time.Second)
		}
	}
	r.pass(4 * time.Minute)
	r.notBegun()
	r.pass(time.Minute)
	s := <-r.begun
	s.opened()
	s.handle(event("a", "c1", 1))
	r.hears("evented", "pod a 00:00:01")
}
