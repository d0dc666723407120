package executor

import (
	"container/list"
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// callsPerProcessor keeps the processors busy while calls wait for the disk or for a lock in the runtime. With one
	// call, processors are idle; with four, the calls wait for each other and cost a tenth more (docs/performance.md).
	callsPerProcessor = 2
	// startPatience is about ten times the duration of a call on a busy machine.
	startPatience = 2 * time.Second
)

// startGate limits how many calls that start pods run at once, so that of many pods that start together the first ones
// become Ready early, and not all of them at the end.
//
// The creation of a sandbox and of a container needs CPU time: for a shim, runc, namespaces and a network. If a hundred
// run at once, each gets 1 % of the machine, the first one ends when the last one does, and the processors lose time by
// going from one to the other. So sandboxes wait while a number of calls run. Calls for containers do not wait, since
// their pods have begun, but sandboxes wait for them.
//
// The gate guarantees no order and does not limit the number of pods. A call that takes longer than startPatience
// gives up its place, so that one that hangs, or a slow network plugin, delays others by no more than that. On a
// machine where every call is slow, the gate is open in effect. A single pod never waits.
type startGate struct {
	places int
	clock  clock.Clock

	mu sync.Mutex
	// taken is the number of calls that have a place. Those for containers can make it larger than places.
	taken int
	// waiting has a channel for each caller of pass that waits, the longest first. It is closed when its turn comes.
	waiting list.List
}

// newStartGate returns a gate with a number of places, at least one.
func newStartGate(places int, c clock.Clock) *startGate {
	return &startGate{places: max(1, places), clock: c}
}

// busy reports whether a place is taken: work is running.
func (g *startGate) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken > 0
}

// pass waits for a place, runs work, and releases the place when work has ended or startPatience has passed. The
// longest waiting caller gets the next place. It returns the error of work, or of ctx if it ends before a place is
// free.
func (g *startGate) pass(ctx context.Context, work func() error) error {
	if err := g.wait(ctx); err != nil {
		return err
	}
	return g.run(work)
}

// enter runs work at once, with a place of its own if all are taken. It returns the error of work.
func (g *startGate) enter(work func() error) error {
	g.mu.Lock()
	g.taken++
	g.mu.Unlock()
	return g.run(work)
}

// run runs work, which has a place.
func (g *startGate) run(work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	timer := g.clock.NewTimer(startPatience)
	defer timer.Stop()
	select {
	case err := <-done:
		g.release()
		return err
	case <-timer.C():
		g.release()
		return <-done
	}
}

// wait takes a place.
func (g *startGate) wait(ctx context.Context) error {
	turn := make(chan struct{})
	g.mu.Lock()
	place := g.waiting.PushBack(turn)
	g.admit()
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-turn: // it came meanwhile, and is for the next one
		g.taken--
		g.admit()
	default:
		g.waiting.Remove(place)
	}
	return ctx.Err()
}

func (g *startGate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken--
	g.admit()
}

// admit gives the free places to those that wait. The caller holds mu.
func (g *startGate) admit() {
	for next := g.waiting.Front(); next != nil && g.taken < g.places; next = g.waiting.Front() {
		g.taken++
		turn, _ := g.waiting.Remove(next).(chan struct{})
		close(turn)
	}
}
