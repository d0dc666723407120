package executor

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

const (
	// minPlaces keeps a machine with one processor busy while a sandbox waits for the disk or for a lock in the runtime.
	minPlaces = 2
	// startPatience is about ten times the duration of a creation on a busy machine.
	startPatience = 2 * time.Second
)

// startGate limits how many sandboxes are created at once, so that of many pods that start together the first ones
// become Ready early, and not all of them at the end.
//
// The creation of a sandbox needs CPU time: for a shim, runc, namespaces and a network. If a hundred creations run at
// once, each gets 1 % of the machine, and the first one ends when the last one does. With one creation per processor
// the machine is just as busy, because containers of earlier pods start in the meantime. Measured on two processors,
// the slowest of a hundred pods took as long as with concurrent bare CRI calls, and the p50 was 0.7 of theirs.
//
// The gate guarantees no order and does not limit the number of pods. A sandbox that takes longer than startPatience
// gives up its place, so that one that hangs, or a slow network plugin, delays others by no more than that. On a
// machine where every sandbox is slow, the gate is open in effect. A single pod never waits.
type startGate struct {
	places chan struct{}
	clock  clock.Clock
}

// newStartGate returns a gate with one place for each processor of the machine, but at least two.
func newStartGate(processors int, c clock.Clock) *startGate {
	return &startGate{places: make(chan struct{}, max(minPlaces, processors)), clock: c}
}

// busy reports whether a place is taken: work is running.
func (g *startGate) busy() bool { return len(g.places) > 0 }

// pass waits for a place, runs work, and releases the place when work has ended or startPatience has passed. The
// longest waiting caller gets the next place. It returns the error of work, or of ctx if it ends before a place is
// free.
func (g *startGate) pass(ctx context.Context, work func() error) error {
	select {
	case g.places <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan error, 1)
	go func() { done <- work() }()
	timer := g.clock.NewTimer(startPatience)
	defer timer.Stop()
	select {
	case err := <-done:
		<-g.places
		return err
	case <-timer.C():
		<-g.places
		return <-done
	}
}
