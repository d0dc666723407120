// Package startgate spaces the making of sandboxes, so that many pods that are to start at once become Ready one after
// another and not all at the end.
//
// Making a sandbox is work of the machine's processors: a shim, runc, namespaces, a network. When a hundred are begun at
// once each gets a hundredth of the machine and the first is done when the last is; when a few more are under way than
// the machine has processors, it is as busy, the last is done at the same time, and the median pod in half of it.
//
// The gate is no promise of order and no limit on pods: a sandbox that takes longer than Patience gives up its place, so
// one that hangs, or a slow network plugin, never holds back others for longer than that, and on a machine where every
// sandbox is slow the gate opens by itself. A pod that is alone never waits.
package startgate

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

const (
	// PlacesPerProcessor keeps the processors busy while some of the sandboxes wait for the disk or for a lock in the
	// runtime. Measured with 100 pods on two processors: 1 place a processor left them idle, 4 and more gave the time of
	// the slowest pod no gain and the median pod a loss.
	PlacesPerProcessor = 2
	// Patience is some ten times what a sandbox takes on a busy machine.
	Patience = 2 * time.Second
)

// Gate has a number of places. Make it with New.
type Gate struct {
	places chan struct{}
	clock  clock.Clock
}

// New makes a gate for a machine with a number of processors.
func New(processors int, c clock.Clock) *Gate {
	return &Gate{places: make(chan struct{}, max(1, processors)*PlacesPerProcessor), clock: c}
}

// Pass waits for a place, does the work, and gives the place back when the work has ended or Patience has passed. Who has
// waited longest goes first. It returns the error of the work, or of ctx when that ends before there is a place.
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
