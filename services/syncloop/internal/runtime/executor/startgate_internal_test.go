package executor

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// places is the number of places: the machine of these tests has three processors.
const places = 3

// crowd is work that records its concurrency and ends when the test permits it.
type crowd struct {
	inside  atomic.Int32
	entered chan struct{}
	leave   chan struct{}
}

func newCrowd(size int) *crowd {
	return &crowd{entered: make(chan struct{}, size), leave: make(chan struct{}, size)}
}

func (c *crowd) work() error {
	c.inside.Add(1)
	defer c.inside.Add(-1)
	c.entered <- struct{}{}
	<-c.leave
	return nil
}

func passAll(t *testing.T, gate *startGate, n int, c *crowd) (done chan error) {
	t.Helper()
	done = make(chan error, n)
	for range n {
		go func() { done <- gate.pass(context.WithoutCancel(t.Context()), c.work) }()
	}
	return done
}

func TestNoMoreThanItsPlacesPassAtOnceAndAllPassInTheEnd(t *testing.T) {
	const pods = 20
	gate := newStartGate(places, clocktesting.NewFakeClock(time.Unix(0, 0)))
	c := newCrowd(pods)
	done := passAll(t, gate, pods, c)
	for range pods {
		<-c.entered
		if inside := c.inside.Load(); inside > places {
			t.Errorf("%d are inside at once, want at most %d", inside, places)
		}
		c.leave <- struct{}{}
	}
	for range pods {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestOneThatHangsGivesUpItsPlace(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	gate := newStartGate(places, clock)
	hung := newCrowd(places)
	hanging := passAll(t, gate, places, hung)
	for range places {
		<-hung.entered
	}
	other := newCrowd(1)
	passed := passAll(t, gate, 1, other)
	for clock.Waiters() < places {
		runtime.Gosched()
	}
	select {
	case <-other.entered:
		t.Fatal("the work passed a full gate")
	default:
	}
	clock.Step(startPatience)
	<-other.entered
	other.leave <- struct{}{}
	if err := <-passed; err != nil {
		t.Error(err)
	}
	for range places {
		hung.leave <- struct{}{}
		if err := <-hanging; err != nil {
			t.Error(err)
		}
	}
}

func TestACancelledWaitReturnsTheReasonAndDoesNothing(t *testing.T) {
	gate := newStartGate(places, clocktesting.NewFakeClock(time.Unix(0, 0)))
	c := newCrowd(places)
	done := passAll(t, gate, places, c)
	for range places {
		<-c.entered
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := gate.pass(ctx, func() error {
		t.Error("the work was done")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	for range places {
		c.leave <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestACallForAContainerDelaysSandboxesAndWaitsForNone has more calls that enter than the gate has places.
func TestACallForAContainerDelaysSandboxesAndWaitsForNone(t *testing.T) {
	gate := newStartGate(places, clocktesting.NewFakeClock(time.Unix(0, 0)))
	containers, sandboxes := newCrowd(places+1), newCrowd(1)
	entered := make(chan error, places+1)
	for range places + 1 {
		go func() { entered <- gate.enter(containers.work) }()
	}
	for range places + 1 {
		<-containers.entered
	}
	passed := passAll(t, gate, 1, sandboxes)
	for range 2 { // one more than the places, and the last of them
		select {
		case <-sandboxes.entered:
			t.Fatal("a sandbox passed a full gate")
		default:
		}
		containers.leave <- struct{}{}
		if err := <-entered; err != nil {
			t.Error(err)
		}
	}
	<-sandboxes.entered
	sandboxes.leave <- struct{}{}
	if err := <-passed; err != nil {
		t.Error(err)
	}
	for range places - 1 {
		containers.leave <- struct{}{}
		if err := <-entered; err != nil {
			t.Error(err)
		}
	}
	if gate.busy() {
		t.Error("the gate is busy, and nothing runs")
	}
}

// TestPlacesOutliveCancelledWaits cancels waits while places become free. In the end all places are free.
func TestPlacesOutliveCancelledWaits(t *testing.T) {
	const rounds, callers = 50, 10
	gate := newStartGate(places, clocktesting.NewFakeClock(time.Unix(0, 0)))
	for range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, callers)
		for i := range callers {
			go func() {
				done <- gate.pass(ctx, func() error {
					if i == 0 {
						cancel()
					}
					runtime.Gosched()
					return nil
				})
			}()
		}
		for range callers {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		cancel()
	}
	c := newCrowd(places)
	done := passAll(t, gate, places, c)
	for range places {
		<-c.entered // the gate still has all its places
	}
	for range places {
		c.leave <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
