package relist_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/stream"
)

// The states of a container in a follower.
const (
	rankStarted = iota + 1
	rankDied
	rankRemoved
)

var ranks = map[lifecyclev1.EventType]int{
	lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED: rankStarted,
	lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED:    rankDied,
	lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED: rankRemoved,
}

// follower follows events with stream.Follow, as every client does, and checks them against the rules.
type follower struct {
	world *world
	stop  func()

	mu sync.Mutex
	// gate blocks the follower while it does not read; nil while it reads.
	gate chan struct{}
	// known has the states of the containers, and their pods.
	known map[string]int
	pods  map[string]string
	held  map[string]*lifecyclev1.PodStatus
	// unsure has the pods that a snapshot has shown with a failed inspection: earlier changes of their containers are
	// visible when it succeeds. shown has the states of these containers in the snapshot; their events may still come.
	unsure map[string]bool
	shown  map[string]int
	// deltas are the single events, wrong are the broken rules; snapshots counts the changes from snapshots.
	deltas    []*lifecyclev1.Event
	wrong     []string
	snapshots int
	// log has everything that it received, for the failure text.
	log []string
}

func follow(w *world, source stream.Source[*lifecyclev1.Event]) *follower {
	f := &follower{
		world:  w,
		known:  map[string]int{},
		pods:   map[string]string{},
		held:   map[string]*lifecyclev1.PodStatus{},
		unsure: map[string]bool{},
		shown:  map[string]int{},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = stream.Follow(ctx, stream.FollowConfig[*lifecyclev1.Event]{
			Source: slowed{source, f}, Handle: f.handle, Logger: slog.New(slog.DiscardHandler),
		})
	}()
	f.stop = func() { f.pause(false); cancel(); <-done }
	return f
}

func (f *follower) pause(paused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case paused && f.gate == nil:
		f.gate = make(chan struct{})
	case !paused && f.gate != nil:
		close(f.gate)
		f.gate = nil
	}
}

func (f *follower) breaks(rule, format string, args ...any) {
	f.wrong = append(f.wrong, rule+": "+fmt.Sprintf(format, args...))
}

func (f *follower) handle(c stream.Change[*lifecyclev1.Event]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf("op %d, from snapshot %v: %v", c.Op, c.FromSnapshot, c.New))
	if c.FromSnapshot {
		f.snapshots++
		f.snapshot(c)
		return
	}
	f.deltas = append(f.deltas, c.New)
	f.held[c.Key] = c.New.GetStatus()
	if c.Op == stream.OpRemove {
		delete(f.held, c.Key)
	}
	if f.unsure[c.Key] {
		for id, rank := range ranksOf(c.New.GetStatus()) {
			f.shown[id] = max(f.shown[id], rank)
		}
		f.unsure[c.Key] = c.New.GetStatus().GetInspectError() != ""
	}
	id, rank := c.New.GetContainerId(), ranks[c.New.GetType()]
	if rank == 0 {
		return
	}
	switch before := f.known[id]; {
	case rank == before:
		f.breaks("Unique", "%v of %s came twice", c.New.GetType(), id)
	case rank < before:
		f.breaks("Ordered", "%v of %s came after rank %d", c.New.GetType(), id, before)
	case rank == rankRemoved && before == rankStarted:
		f.breaks("Reliable", "%s was removed, and its death was not told", id)
	}
	f.known[id], f.pods[id] = rank, c.Key
	f.checkFacts(c.New)
}

// checkFacts compares an event with the history of the runtime.
func (f *follower) checkFacts(e *lifecyclev1.Event) {
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	end, seen := f.world.ended[e.GetContainerId()], false
	for _, c := range e.GetStatus().GetContainers() {
		seen = seen || c.GetId() == e.GetContainerId()
	}
	if e.GetType() == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED && seen &&
		(end == nil || e.GetExitCode() != end.GetExitCode() ||
			!e.GetOccurredAt().AsTime().Equal(time.Unix(0, end.GetFinishedAt()))) {
		f.breaks("Reliable", "the death of %s is told as %v, and it was %v", e.GetContainerId(), e, end)
	}
}

// snapshot applies a difference between a fresh snapshot and the known state.
func (f *follower) snapshot(c stream.Change[*lifecyclev1.Event]) {
	fresh := c.New.GetStatus()
	f.unsure[c.Key] = fresh.GetInspectError() != ""
	ranks := ranksOf(fresh)
	for id, rank := range ranks {
		f.pods[id] = c.Key
		if rank == rankDied || !f.unsure[c.Key] {
			f.known[id] = max(f.known[id], rank)
		} else {
			f.shown[id] = max(f.shown[id], rank)
		}
	}
	for id, uid := range f.pods {
		if _, still := ranks[id]; !still && uid == c.Key {
			f.known[id] = rankRemoved
		}
	}
	if c.Op == stream.OpRemove {
		delete(f.held, c.Key)
	} else {
		f.held[c.Key] = fresh
	}
}

// ranksOf returns the states of the containers of a status.
func ranksOf(s *lifecyclev1.PodStatus) map[string]int {
	all := map[string]int{}
	for _, c := range s.GetContainers() {
		all[c.GetId()] = map[lifecyclev1.ContainerState]int{
			lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING: rankStarted,
			lifecyclev1.ContainerState_CONTAINER_STATE_EXITED:  rankDied,
		}[c.GetState()]
	}
	return all
}

// complete checks that nothing is missing once everything has settled.
func (f *follower) complete() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	present := map[string]bool{}
	for _, c := range f.world.containers {
		present[c.GetId()] = true
		want := map[runtimeapi.ContainerState]int{
			runtimeapi.ContainerState_CONTAINER_RUNNING: rankStarted, runtimeapi.ContainerState_CONTAINER_EXITED: rankDied,
		}[c.GetState()]
		if rank := max(f.known[c.GetId()], f.shown[c.GetId()]); rank < want {
			f.breaks("Reliable", "%s is %v, and it was told rank %d", c.GetId(), c.GetState(), rank)
		}
	}
	for _, ids := range []map[string]int{f.known, f.shown} {
		for id := range ids {
			if !present[id] && f.known[id] != rankRemoved {
				f.breaks("Reliable", "%s is gone, and it was told rank %d", id, f.known[id])
			}
		}
	}
	if diff := diffWorld(f.world, f.held, true); diff != "" {
		f.breaks("Reliable", "what it holds is not what the runtime has (-runtime +held):\n%s", diff)
	}
}

// take returns and clears what it has received: the deltas and the changes from snapshots.
func (f *follower) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	texts := []string{}
	for _, e := range f.deltas {
		texts = append(texts, fmt.Sprint(e.GetType(), " ", e.GetContainerId()))
	}
	if f.snapshots > 0 {
		texts = append(texts, fmt.Sprintf("%d changes out of a snapshot", f.snapshots))
	}
	f.deltas, f.snapshots = nil, 0
	return texts
}

// broken returns the broken rules, with everything that it has received.
func (f *follower) broken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.wrong) == 0 {
		return nil
	}
	return append(f.wrong, f.log...)
}

// slowed is a source whose subscriptions block while their follower does not read.
type slowed struct {
	stream.Source[*lifecyclev1.Event]

	f *follower
}

func (s slowed) Subscribe(ctx context.Context, token []byte) (stream.Subscription[*lifecyclev1.Event], error) {
	sub, err := s.Source.Subscribe(ctx, token)
	return slowSubscription{sub, s.f}, err
}

type slowSubscription struct {
	stream.Subscription[*lifecyclev1.Event]

	f *follower
}

func (s slowSubscription) Next(ctx context.Context) (stream.Message[*lifecyclev1.Event], error) {
	s.f.mu.Lock()
	gate := s.f.gate
	s.f.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	return s.Subscription.Next(ctx)
}

// door connects to the running pleg, if there is one. Breaking it ends every subscription, also in the middle of a
// message.
type door struct {
	mu     sync.Mutex
	now    *process
	broken context.Context //nolint:containedctx // the life of the connections
	cut    func()
}

var errAway = errors.New("pleg is away")

func (d *door) set(p *process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cut != nil {
		d.cut()
	}
	d.now = p
	d.broken, d.cut = context.WithCancel(context.Background())
}

func (d *door) Subscribe(ctx context.Context, token []byte) (stream.Subscription[*lifecyclev1.Event], error) {
	d.mu.Lock()
	p, broken := d.now, d.broken
	d.mu.Unlock()
	if p == nil {
		return nil, errAway
	}
	select {
	case <-p.Synced():
	case <-broken.Done():
		return nil, errAway
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	sub, err := p.events.Subscribe(ctx, token)
	return connection{sub, broken}, err
}

type connection struct {
	stream.Subscription[*lifecyclev1.Event]

	broken context.Context //nolint:containedctx // the life of the connection
}

func (c connection) Next(ctx context.Context) (stream.Message[*lifecyclev1.Event], error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.broken, cancel)()
	if c.broken.Err() != nil {
		return stream.Message[*lifecyclev1.Event]{}, errAway
	}
	return c.Subscription.Next(ctx)
}
