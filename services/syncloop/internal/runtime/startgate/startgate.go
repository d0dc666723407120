// Package startgate spaces the making of sandboxes, so that many pods that are to start at once become Ready one after
// another and not all at the end.
//
// Making a sandbox is work of the machine's processors: a shim, runc, namespaces, a network. When a hundred are begun
// at once each gets a hundredth of the machine and the first is done when the last is. With one under way for each
// processor the machine is as busy, because containers of earlier pods start meanwhile: measured on two processors, the
// slowest of a hundred pods took as long, and the median one 0.7 of the time of bare CRI calls made all at once.
//
// The gate is no promise of order and no limit on pods: a sandbox that takes longer than Patience gives up its place,
// so one that hangs, or a slow network plugin, never holds back others for longer than that, and on a machine where
// every sandbox is slow the gate opens by itself. A pod that is alone never waits.
package startgate

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

const (
	// minPlaces keeps a machine of one processor busy while a sandbox waits for the disk or for a lock in the runtime.
	minPlaces = 2
	// Patience is some ten times what a sandbox takes on a busy machine.
	Patience = 2 * time.Second
)

// Gate has a number of places. Make it with New.
type Gate struct {
	places chan struct{}
	clock  clock.Clock
}

// New makes a gate with a place for each of a machine's processors, and two at least.
func New(processors int, c clock.Clock) *Gate {
	return &Gate{places: make(chan struct{}, max(minPlaces, processors)), clock: c}
}

// Busy tells whether somebody has a place: something is being made, or waits to be.
func (g *Gate) Busy() bool { return len(g.places) > 0 }

// Pass waits for a place, does the work, and gives the place back when the work has ended or Patience has passed. Who
// has waited longest goes first. It returns the error of the work, or of ctx when that ends before there is a place.
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
